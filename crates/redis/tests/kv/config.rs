//! `[redis]` of a configuration file leads to a server (D9).

use tenure_redis::Config;
use tenure_redis::KvExt;
use tenure_testkit::servers::RedisServer;

use crate::support::raw;

/// D9: every field affects the connection, and code overrides the file.
#[tokio::test]
async fn d9_a_file_leads_to_the_server() {
    let server = RedisServer::start_with(&["--requirepass", "p@:/ %"]);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tenure.toml");
    let text = format!(
        "[redis]\nhost = '127.0.0.1'\nport = {}\ndatabase = 2\npassword = 'p@:/ %'\n\
         maxConnections = 2\ntimeoutMs = 1500\nprefix = 'file'\n",
        server.port()
    );
    std::fs::write(&path, text).unwrap();
    let redis = Config::read_file(&path).unwrap().prefix("shop").connect().await.unwrap();
    redis.set("k", "v").await.unwrap();
    let mut raw_client = server.client();
    raw_client.command(&["AUTH", "p@:/ %"]);
    raw_client.command(&["SELECT", "2"]);
    assert_eq!(raw_client.text(&["GET", "shop:k"]).as_deref(), Some("v"));
}

/// D9: a missing file is not an error, and an unknown field is refused by name.
#[tokio::test]
async fn d9_files_that_are_not_there_or_wrong() {
    let server = RedisServer::start();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tenure.toml");
    let config = Config::read_file(&path).unwrap().host("127.0.0.1").port(server.port());
    config.connect().await.unwrap().set("k", "v").await.unwrap();
    assert_eq!(raw(&server, "tenure:k").as_deref(), Some("v"));
    std::fs::write(&path, "[redis]\npool = 3\n").unwrap();
    let error = Config::read_file(&path).unwrap_err();
    assert!(error.is_invalid());
    assert!(error.to_string().starts_with("unknown field `redis.pool` in `"), "{error}");
}
