//! Jobs whose token requires TLS.

use crate::proxy::Proxy;
use fleet_base::Result;
use fleet_net::calls::{CallClient, CallOptions, CallServer, Conversation};
use fleet_net::{
    Fabric, Limits, Log, Mesh, Store, StoreClient, StoreServer, TcpFabric, TcpOptions, Token,
    Transfer, Vigilance,
};
use std::time::Duration;

fn limits() -> Limits {
    Limits::within(Duration::from_secs(60))
}

fn server(token: &Token) -> StoreServer {
    StoreServer::bind("127.0.0.1:0", token, Vigilance::default(), Log::silent()).expect("a port")
}

#[test]
fn a_token_says_that_it_asks_for_tls() {
    let token = Token::generate().and_then(Token::over_tls).expect("a key");
    let text = token.to_text();
    assert!(text.starts_with("tls:") && text.len() == 4 + 64);
    let again = Token::from_text(&text).expect("the same");
    assert!(again == token && again.is_over_tls());
    let plain = Token::from_text(&text[4..]).expect("the same secret");
    assert!(plain != token && !plain.is_over_tls());
}

/// Store and mesh, with messages longer than any buffer, in both directions at once. The store is
/// reached through a recorder, which finds no plain text.
#[test]
fn everything_is_encrypted() {
    let token = Token::generate().and_then(Token::over_tls).expect("a key");
    let server = server(&token);
    let proxy = Proxy::start(server.address(), 1, usize::MAX / 2);
    const WORD: &[u8] = b"a word that nobody else may read";
    std::thread::scope(|scope| {
        for rank in 0..2 {
            let (token, proxy) = (&token, &proxy);
            scope.spawn(move || -> Result<()> {
                let store = StoreClient::connect(proxy.address(), token, &limits())?;
                store.set(&format!("word/{rank}"), WORD, &limits())?;
                let options = TcpOptions::new("job", rank, 2).interface("127.0.0.1");
                let fabric = TcpFabric::start(&store, token, options, &limits())?;
                let mesh = fabric.open("world", &[0, 1])?;
                exchange(&*mesh)
            });
        }
    });
    let recorded = proxy.recorded();
    assert!(recorded.len() > 1000, "{} bytes", recorded.len());
    assert!(!recorded.windows(WORD.len()).any(|bytes| bytes == WORD));
    assert!(!recorded.windows(8).any(|bytes| bytes == b"FLEETNET"));
}

fn exchange(mesh: &dyn Mesh) -> Result<()> {
    let peer = 1 - mesh.rank();
    let value = |rank: usize, i: usize| (rank * 31 + i * 7 + i / 1000) as u8;
    for bytes in [0, 1, 5_000, 700_001, 20_000_003] {
        let own: Vec<u8> = (0..bytes).map(|i| value(mesh.rank(), i)).collect();
        let mut theirs = vec![0; bytes];
        let mut folded = vec![0u8; bytes];
        let mut sink =
            |at: usize, piece: &[u8]| folded[at..at + piece.len()].copy_from_slice(piece);
        mesh.transfer(
            &mut [
                Transfer::Send { to: peer, data: &own },
                Transfer::Send { to: peer, data: &own },
                Transfer::Recv { from: peer, into: &mut theirs },
                Transfer::Fold { from: peer, bytes, unit: 1, sink: &mut sink },
            ],
            &limits(),
        )?;
        let expected: Vec<u8> = (0..bytes).map(|i| value(peer, i)).collect();
        assert!(theirs == expected && folded == expected, "{bytes} bytes");
    }
    Ok(())
}

struct Echo;

impl Conversation for Echo {
    fn call(&mut self, _method: u8, request: &[u8], answer: &mut Vec<u8>) -> Result<()> {
        answer.extend(request);
        Ok(())
    }
}

/// Requests and answers of workers and parameter servers, several in flight and longer than any
/// buffer. The recorder in between finds no plain text.
#[test]
fn calls_are_encrypted() {
    let token = Token::generate().and_then(Token::over_tls).expect("a key");
    let options = CallOptions::default();
    let open = |_: &[u8], _| Ok(Box::new(Echo) as Box<dyn Conversation>);
    let server = CallServer::bind("127.0.0.1:0", &token, options, Log::silent(), open);
    let server = server.expect("a port");
    let proxy = Proxy::start(server.address(), 1, usize::MAX / 2);
    const WORD: &[u8] = b"a row that nobody else may read";
    let client = CallClient::connect(proxy.address(), &token, WORD, options, &limits());
    let mut client = client.expect("a connection");
    let long = WORD.repeat(200_000);
    for request in [WORD, &long, &[], &long, &long] {
        client
            .send(1, &[&request[..request.len() / 2], &request[request.len() / 2..]], &limits())
            .expect("sent");
    }
    for request in [WORD, &long, &[], &long, &long] {
        let (_, answer) = client.receive(&limits()).expect("an answer");
        assert!(answer.expect("an echo") == request);
    }
    let recorded = proxy.recorded();
    assert!(recorded.len() > 100_000, "{} bytes", recorded.len());
    assert!(!recorded.windows(WORD.len()).any(|bytes| bytes == WORD));
    assert!(!recorded.windows(8).any(|bytes| bytes == b"FLEETNET"));
    let plain = Token::generate().expect("a token");
    let error = CallClient::connect(server.address(), &plain, b"", options, &limits());
    let error = error.map(|_| ()).expect_err("it is refused").to_string();
    assert!(error.contains("the peer requires TLS, but this process does not use it"), "{error}");
}

fn refused(server: &StoreServer, token: &Token) -> String {
    let result = StoreClient::connect(server.address(), token, &limits());
    result.map(|_| ()).expect_err("it is refused").to_string()
}

#[test]
fn who_differs_is_told() {
    let plain = Token::generate().expect("a token");
    let under = plain.clone().over_tls().expect("a key");
    let error = refused(&server(&under), &plain);
    assert!(error.contains("the peer requires TLS, but this process does not use it"), "{error}");
    let error = refused(&server(&plain), &under);
    assert!(error.contains("TLS handshake failed"), "{error}");
    assert!(
        error.contains("check that the other process also uses a token with `tls:`"),
        "{error}"
    );
    let other = Token::generate().and_then(Token::over_tls).expect("a key");
    let error = refused(&server(&under), &other);
    assert!(error.contains("the peer rejected the job token"), "{error}");
}
