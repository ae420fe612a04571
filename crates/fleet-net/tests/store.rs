//! The guarantees of [`Store`], tested on every implementation.

use fleet_base::{Error, ErrorKind};
use fleet_net::store::{KEY_BYTES_MAX, VALUE_BYTES_MAX};
use fleet_net::{Abort, Deadline, Limits, MemoryStore, Store, Swap};
use std::time::Duration;

fn long() -> Limits {
    Limits::within(Duration::from_secs(60))
}

fn short() -> Limits {
    Limits::within(Duration::from_millis(30))
}

/// `store` must be empty.
pub fn keys_and_values(store: &dyn Store) {
    let limits = &long();
    assert_eq!(store.get("a", limits).unwrap(), None);
    store.set("a", b"1", limits).unwrap();
    store.set("a", &[0, 255], limits).unwrap();
    assert_eq!(store.get("a", limits).unwrap().unwrap(), [0, 255]);
    assert!(store.delete("a", limits).unwrap());
    assert!(!store.delete("a", limits).unwrap());

    assert_eq!(store.add("n", 5, limits).unwrap(), 5);
    assert_eq!(store.add("n", -7, limits).unwrap(), -2);
    assert_eq!(store.get("n", limits).unwrap().unwrap(), b"-2");
    store.set("text", b"ten", limits).unwrap();
    assert_eq!(store.add("text", 1, limits).unwrap_err().kind(), ErrorKind::Invalid);
    store.set("big", i64::MAX.to_string().as_bytes(), limits).unwrap();
    assert!(store.add("big", 1, limits).unwrap_err().message().contains("overflows"));

    assert_eq!(store.compare_and_set("c", None, b"x", limits).unwrap(), Swap::Done);
    let lost = store.compare_and_set("c", None, b"y", limits).unwrap();
    assert_eq!(lost, Swap::Lost(Some(b"x".to_vec())));
    assert_eq!(store.compare_and_set("c", Some(b"x"), b"y", limits).unwrap(), Swap::Done);
    assert_eq!(store.compare_and_set("d", Some(b"x"), b"y", limits).unwrap(), Swap::Lost(None));

    for key in ["list/b", "list/a", "list", "list0", "list/"] {
        store.set(key, key.as_bytes(), limits).unwrap();
    }
    let keys: Vec<_> = store.list("list/", limits).unwrap().into_iter().map(|(k, _)| k).collect();
    assert_eq!(keys, ["list/", "list/a", "list/b"]);

    let long_key = "k".repeat(KEY_BYTES_MAX + 1);
    for key in ["", &long_key] {
        assert_eq!(store.set(key, b"", limits).unwrap_err().kind(), ErrorKind::Invalid);
    }
    let long_value = vec![0; VALUE_BYTES_MAX + 1];
    let error = store.set("v", &long_value, limits).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Exhausted);
    store.set("v", &long_value[1..], limits).unwrap();
    assert_eq!(store.get("v", limits).unwrap().unwrap().len(), VALUE_BYTES_MAX);
}

pub fn waits(connect: &(dyn Fn() -> Box<dyn Store> + Sync)) {
    let store = connect();
    store.set("w/0", b"zero", &long()).unwrap();
    let error = store.wait(&["w/0", "w/1", "w/2"], &short()).unwrap_err();
    assert!(error.message().contains("2 of 3 keys are missing: w/1, w/2"), "{error}");
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| connect().wait(&["w/1", "w/0"], &long()).unwrap());
        let watcher = scope.spawn(|| connect().watch("w/1", 0, &long()).unwrap());
        store.set("w/1", b"one", &long()).unwrap();
        assert_eq!(waiter.join().unwrap(), [b"one".to_vec(), b"zero".to_vec()]);
        assert_eq!(watcher.join().unwrap().changes[0].value.as_deref(), Some(&b"one"[..]));
    });
    let abort = Abort::new();
    std::thread::scope(|scope| {
        let limits = Limits::new(Deadline::never(), &abort);
        let waiter = scope.spawn(move || connect().wait(&["never"], &limits).unwrap_err());
        abort.fire(Error::unavailable("enough"));
        assert_eq!(waiter.join().unwrap().message(), "enough");
    });
}

pub fn watches(store: &dyn Store) {
    let limits = &long();
    store.set("x/a", b"1", limits).unwrap();
    store.set("x/b", b"2", limits).unwrap();
    store.set("x/a", b"3", limits).unwrap();
    let first = store.watch("x/", 0, limits).unwrap();
    let seen: Vec<_> = first.changes.iter().map(|c| (c.key.as_str(), c.value.clone())).collect();
    assert_eq!(seen, [("x/b", Some(b"2".to_vec())), ("x/a", Some(b"3".to_vec()))]);
    let none = store.watch("x/", first.revision, &short()).unwrap();
    assert!(none.changes.is_empty() && none.revision >= first.revision);
    store.delete("x/b", limits).unwrap();
    store.set("y", b"", limits).unwrap();
    let second = store.watch("x/", first.revision, limits).unwrap();
    assert_eq!(second.changes.len(), 1);
    assert_eq!((second.changes[0].key.as_str(), &second.changes[0].value), ("x/b", &None));

    // A watcher that has missed too many changes gets all existing keys.
    store.set("x/c", b"4", limits).unwrap();
    for round in 0..5000 {
        store.set("gone", &[round as u8], limits).unwrap();
        store.delete("gone", limits).unwrap();
    }
    let all = store.watch("x/", second.revision, limits).unwrap();
    let keys: Vec<_> = all.changes.iter().map(|change| change.key.as_str()).collect();
    assert!(all.complete);
    assert_eq!(keys, ["x/a", "x/c"]);
}

pub fn counts_are_exact(connect: &(dyn Fn() -> Box<dyn Store> + Sync)) {
    const ADDS: i64 = 50;
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let store = connect();
                for _ in 0..ADDS {
                    store.add("sum", 1, &long()).unwrap();
                }
            });
        }
    });
    assert_eq!(connect().add("sum", 0, &long()).unwrap(), 4 * ADDS);
}

#[test]
fn in_memory() {
    let store = MemoryStore::new();
    keys_and_values(&store);
    watches(&MemoryStore::new());
    let connect = || Box::new(store.clone()) as Box<dyn Store>;
    waits(&connect);
    counts_are_exact(&connect);
}

mod served {
    use super::*;
    use crate::proxy::Proxy;
    use fleet_net::{Log, StoreClient, StoreServer, Token, Vigilance};

    fn server(token: &Token) -> StoreServer {
        StoreServer::bind("127.0.0.1:0", token, Vigilance::default(), Log::stderr()).unwrap()
    }

    #[test]
    fn promises() {
        let token = Token::generate().unwrap();
        let server_a = server(&token);
        let connect = || -> Box<dyn Store> {
            Box::new(StoreClient::connect(server_a.address(), &token, &long()).unwrap())
        };
        keys_and_values(&*connect());
        waits(&connect);
        counts_are_exact(&connect);
        let server_b = server(&token);
        watches(&StoreClient::connect(server_b.address(), &token, &long()).unwrap());
    }

    #[test]
    fn one_handle_serves_threads_that_wait() {
        let token = Token::generate().unwrap();
        let server = server(&token);
        let store = StoreClient::connect(server.address(), &token, &long()).unwrap();
        std::thread::scope(|scope| {
            let waiters: Vec<_> = (0..8)
                .map(|index| {
                    let key = format!("late/{index}");
                    let store = &store;
                    scope.spawn(move || store.wait(&[&key, "late/all"], &long()).unwrap())
                })
                .collect();
            for index in 0..8 {
                store.set(&format!("late/{index}"), &[index], &long()).unwrap();
            }
            store.set("late/all", b"x", &long()).unwrap();
            for (index, waiter) in waiters.into_iter().enumerate() {
                assert_eq!(waiter.join().unwrap(), [vec![index as u8], b"x".to_vec()]);
            }
        });
    }

    /// Connections are cut at random bytes, and every addition is applied once.
    #[test]
    fn lost_connections_change_nothing() {
        let token = Token::generate().unwrap();
        let server = server(&token);
        for seed in 0..3 {
            println!("seed {seed}");
            let proxy = Proxy::start(server.address(), seed, 3000);
            let client = StoreClient::connect(proxy.address(), &token, &long()).unwrap();
            let key = format!("sum/{seed}");
            for turn in 1..=200 {
                assert_eq!(client.add(&key, 1, &long()).unwrap(), turn);
            }
            assert!(proxy.cuts() > 0, "the proxy cut nothing");
            let swap = client.compare_and_set("once", None, b"1", &long()).unwrap();
            assert_eq!(swap == Swap::Done, seed == 0);
        }
    }

    #[test]
    fn a_store_started_anew_is_another_store() {
        let token = Token::generate().unwrap();
        let first = server(&token);
        let proxy = Proxy::start(first.address(), 1, usize::MAX);
        let client = StoreClient::connect(proxy.address(), &token, &long()).unwrap();
        client.set("a", b"1", &long()).unwrap();
        drop(first);
        let error = client.get("a", &Limits::within(Duration::from_millis(300))).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        let second = server(&token);
        proxy.redirect(second.address());
        let error = client.get("a", &long()).unwrap_err();
        assert!(error.message().contains("restarted"), "{error}");
    }

    #[test]
    fn a_missing_server_is_named() {
        let token = Token::generate().unwrap();
        let address = server(&token).address();
        let limits = Limits::within(Duration::from_millis(200));
        let error = StoreClient::connect(address, &token, &limits).err().unwrap().to_string();
        assert!(error.contains(&format!("cannot connect to {address}")), "{error}");
        assert!(error.contains("at attempt "), "{error}");
    }
}
