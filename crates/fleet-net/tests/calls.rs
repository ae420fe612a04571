//! Requests and answers over frames.

use fleet_base::{Error, ErrorKind, Result};
use fleet_net::calls::{CallClient, CallOptions, CallServer, Checksum, Conversation};
use fleet_net::{Limits, Log, Token};
use std::time::Duration;

fn long() -> Limits {
    Limits::within(Duration::from_secs(60))
}

/// Method 1 returns the request, 2 as many bytes as the request asks for, and 3 an error.
struct Echo {
    calls: u64,
}

impl Conversation for Echo {
    fn call(&mut self, method: u8, request: &[u8], answer: &mut Vec<u8>) -> Result<()> {
        self.calls += 1;
        match method {
            1 => answer.extend(request),
            2 => answer.resize(u32::from_le_bytes(request.try_into().unwrap()) as usize, 7),
            _ => return Err(Error::invalid("no such table").got(self.calls)),
        }
        Ok(())
    }
}

fn serve(token: &Token, options: CallOptions) -> CallServer {
    let open = |hello: &[u8], _| match hello {
        b"nobody" => Err(Error::invalid("not welcome")),
        _ => Ok(Box::new(Echo { calls: 0 }) as Box<dyn Conversation>),
    };
    CallServer::bind("127.0.0.1:0", token, options, Log::silent(), open).unwrap()
}

fn connect(server: &CallServer, token: &Token, options: CallOptions) -> CallClient {
    CallClient::connect(server.address(), token, b"", options, &long()).unwrap()
}

#[test]
fn answers_come_in_order_and_whole() {
    let token = Token::generate().unwrap();
    for checksum in [Checksum::Never, Checksum::BetweenMachines, Checksum::Always] {
        let options = CallOptions { checksum, ..CallOptions::default() };
        let server = serve(&token, options);
        let mut client = connect(&server, &token, options);
        let payload: Vec<u8> = (0..3_000_000).map(|at| (at / 3) as u8).collect();
        for sizes in [&[0, 1, 1000][..], &[3_000_000, 5, 3_000_000, 0, 3_000_000]] {
            let mut sent = Vec::new();
            for &size in sizes {
                // Split into parts, some of which are empty.
                let (head, tail) = payload[..size].split_at(size / 3);
                sent.push(client.send(1, &[head, b"", tail], &long()).unwrap());
            }
            assert_eq!(client.in_flight(), sizes.len());
            for (id, size) in sent.into_iter().zip(sizes) {
                let (got, answer) = client.receive(&long()).unwrap();
                assert_eq!(got, id);
                assert!(answer.unwrap() == payload[..*size]);
            }
        }
    }
}

#[test]
fn errors_are_the_services_and_the_conversation_goes_on() {
    let token = Token::generate().unwrap();
    let options = CallOptions { frame_bytes_max: 1000, in_flight_max: 2, ..Default::default() };
    let server = serve(&token, options);
    let mut client = connect(&server, &token, options);
    let error = client.call(3, &[], &long()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert_eq!(error.to_string(), "no such table: got 1");
    let error = client.call(2, &[&2000u32.to_le_bytes()], &long()).unwrap_err();
    assert!(error.message().contains("answer too long"), "{error}");
    assert!(client.call(1, &[&[0; 1001]], &long()).is_err());
    client.send(1, &[b"a"], &long()).unwrap();
    client.send(1, &[b"b"], &long()).unwrap();
    assert_eq!(client.send(1, &[b"c"], &long()).unwrap_err().kind(), ErrorKind::Exhausted);
    assert_eq!(client.receive(&long()).unwrap().1.unwrap(), b"a");
    assert_eq!(client.receive(&long()).unwrap().1.unwrap(), b"b");
    assert_eq!(client.receive(&long()).unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!(client.call(1, &[b"still here"], &long()).unwrap(), b"still here");
}

#[test]
fn many_clients_and_an_end() {
    let token = Token::generate().unwrap();
    let options = CallOptions { connections_max: 8, ..CallOptions::default() };
    let server = serve(&token, options);
    std::thread::scope(|scope| {
        for client in 0..8u8 {
            let (server, token) = (&server, &token);
            scope.spawn(move || {
                let mut own = connect(server, token, options);
                for turn in 0..50u8 {
                    assert_eq!(own.call(1, &[&[client, turn]], &long()).unwrap(), [client, turn]);
                }
            });
        }
    });
    let mut client = connect(&server, &token, options);
    client.call(1, &[b"x"], &long()).unwrap();
    drop(server);
    let error = client.call(1, &[b"y"], &long()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(client.call(1, &[b"z"], &long()).is_err(), "a broken client stays broken");
}

#[test]
fn who_does_not_belong_is_refused() {
    let token = Token::generate().unwrap();
    let options = CallOptions::default();
    let server = serve(&token, options);
    let other = Token::generate().unwrap();
    let error = CallClient::connect(server.address(), &other, b"", options, &long()).err().unwrap();
    assert!(error.message().contains("rejected the job token"), "{error}");
    let error = fleet_net::StoreClient::connect(server.address(), &token, &long()).err().unwrap();
    assert!(error.message().contains("wrong kind of connection to a service"), "{error}");
    let mut nobody =
        CallClient::connect(server.address(), &token, b"nobody", options, &long()).unwrap();
    assert_eq!(nobody.call(1, &[b"x"], &long()).unwrap_err().kind(), ErrorKind::Unavailable);
}
