// Measures the mutex of etcd's own Go client, for comparison: several clients take turns on one lock, each with
// its own connection and session.
//
// In: endpoint, prefix, number of clients, milliseconds. Out: the microseconds of one turn; with more than one
// client, a turn counts only if the holder changed.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
)

func main() {
	if len(os.Args) != 5 {
		log.Fatal("usage: mutex ENDPOINT PREFIX CLIENTS MILLISECONDS")
	}
	count, millis := number(os.Args[3]), number(os.Args[4])
	mutexes := make([]*concurrency.Mutex, count)
	for i := range mutexes {
		client, err := clientv3.New(clientv3.Config{Endpoints: []string{os.Args[1]}})
		check(err)
		session, err := concurrency.NewSession(client)
		check(err)
		mutexes[i] = concurrency.NewMutex(session, os.Args[2])
		defer client.Close()
		defer session.Close()
	}
	// The first turns establish connections, and do not count.
	turns(mutexes, 100*time.Millisecond)
	began := time.Now()
	taken := turns(mutexes, time.Duration(millis)*time.Millisecond)
	fmt.Println(float64(time.Since(began).Microseconds()) / float64(taken))
}

// Lets all clients take turns for a while. Returns the number of turns that count.
func turns(mutexes []*concurrency.Mutex, lasting time.Duration) int64 {
	var taken, last atomic.Int64
	last.Store(-1)
	var all sync.WaitGroup
	until := time.Now().Add(lasting)
	for i, mutex := range mutexes {
		all.Add(1)
		go func() {
			defer all.Done()
			for time.Now().Before(until) {
				check(mutex.Lock(context.Background()))
				if last.Swap(int64(i)) != int64(i) || len(mutexes) == 1 {
					taken.Add(1)
				}
				check(mutex.Unlock(context.Background()))
			}
		}()
	}
	all.Wait()
	return taken.Load()
}

func number(text string) int {
	value, err := strconv.Atoi(text)
	check(err)
	return value
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
