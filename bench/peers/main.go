// Beside us the mutex of etcd's own client for Go: so many clients in turns on one lock, each with a
// connection and a session of its own.
//
// In: endpoint, prefix, number of clients, milliseconds. Out: the microseconds that one turn takes; with
// more than one client, only those turns count that had another holder than the one before.
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
	// The first turns are for connections, and do not count.
	turns(mutexes, 100*time.Millisecond)
	began := time.Now()
	taken := turns(mutexes, time.Duration(millis)*time.Millisecond)
	fmt.Println(float64(time.Since(began).Microseconds()) / float64(taken))
}

// All in turns for a while: how many turns counted.
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
