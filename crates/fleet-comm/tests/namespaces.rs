//! Two ranks in separate network namespaces with a virtual link, the nearest a test comes to two
//! machines. If namespaces cannot be made, the test prints the reason and ends.

use fleet_base::Result;
use fleet_comm::{GroupOptions, ReduceOp, World};
use fleet_net::{
    Abort, Limits, Log, StoreClient, StoreServer, TcpFabric, TcpOptions, Token, Vigilance,
};
use fleet_testhost::process;
use fleet_testhost::virtual_link::{ADDRESSES, VirtualLink};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

const TOKEN: &str = "FLEET_COMM_TEST_TOKEN";
const WAIT_MAX: Duration = Duration::from_secs(60);
/// Timeout of a collective, which applies after the link is cut.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Works as a rank, whose role is its number and the address of the store or for it.
fn run_as_rank(role: &str) {
    let (rank, address) = role.split_once(' ').expect("two words");
    match work(rank.parse().expect("a rank"), address) {
        Ok(()) => println!("\nended well"),
        Err(error) => println!("\nfailed: {}", error.to_string().replace('\n', " | ")),
    }
}

fn work(rank: usize, address: &str) -> Result<()> {
    let limits = Limits::within(WAIT_MAX);
    let token = Token::from_text(&std::env::var(TOKEN).unwrap_or_default())?;
    let _server;
    let address = if rank == 0 {
        let server = StoreServer::bind(address, &token, Vigilance::default(), Log::silent())?;
        let bound = server.address();
        println!("\nstore {bound}");
        _server = server;
        bound
    } else {
        address.parse().expect("an address")
    };
    let store = StoreClient::connect(address, &token, &limits)?;
    let fabric =
        TcpFabric::start(&store, &token, TcpOptions::new("job", rank, 2).store(address), &limits)?;
    println!("\nlistens on {}", fabric.address().ip());
    let world = World::new(Arc::new(fabric), Arc::new(store), Abort::new());
    let options =
        GroupOptions { shared_memory: false, timeout: TIMEOUT, ..GroupOptions::default() };
    let group = world.group("world", &[0, 1], &options)?;
    let mut data: Vec<f32> = (0..1_000_000).map(|i| (i % 97) as f32 + rank as f32).collect();
    group.all_reduce("first", &mut data, ReduceOp::Sum)?;
    assert!(data.iter().enumerate().all(|(i, x)| *x == 2.0 * (i % 97) as f32 + 1.0));
    println!("\nready");
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).expect("a line");
    group.all_reduce("after the cut", &mut data, ReduceOp::Sum)
}

struct Rank {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Rank {
    fn start(namespace: &str, rank: usize, address: &str, token: &Token) -> Rank {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", namespace]);
        let test = "namespaces::two_machines_and_a_cable";
        let mut child = process::append(&mut command, test, &format!("{rank} {address}"))
            .env(TOKEN, token.to_text())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a process");
        let output = BufReader::new(child.stdout.take().expect("a pipe"));
        Rank { input: child.stdin.take(), child, output }
    }

    /// The rest of the next line with this start.
    fn expect(&mut self, start: &str) -> String {
        let mut seen = String::new();
        loop {
            let mut line = String::new();
            let bytes = self.output.read_line(&mut line).expect("text");
            if let Some(rest) = line.strip_prefix(start) {
                return rest.trim().to_string();
            }
            assert!(bytes > 0, "no line '{start}': {seen}");
            seen += &line;
        }
    }
}

impl Drop for Rank {
    fn drop(&mut self) {
        // Most have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn two_machines_and_a_cable() {
    if let Some(role) = process::role() {
        return run_as_rank(&role);
    }
    let link = match VirtualLink::create("fleet-test") {
        Ok(link) => link,
        Err(why) => {
            println!("skipped: cannot create network namespaces: {why}");
            return;
        }
    };
    let token = Token::generate().expect("random bytes");
    let host = format!("{}:0", ADDRESSES[0]);
    let mut first = Rank::start(&link.names[0], 0, &host, &token);
    let address = first.expect("store ");
    let mut ranks = [first, Rank::start(&link.names[1], 1, &address, &token)];
    for (rank, interface) in ranks.iter_mut().zip(ADDRESSES) {
        // The default interface is that of the route to the store, also on the host of the store.
        assert_eq!(rank.expect("listens on "), interface);
        rank.expect("ready");
    }
    link.take_down();
    for rank in &mut ranks {
        let mut input = rank.input.take().expect("a pipe");
        input.write_all(b"go on\n").expect("the rank waits");
    }
    for (number, rank) in ranks.iter_mut().enumerate() {
        let text = rank.expect("failed: ");
        let other = 1 - number;
        assert!(text.contains(&format!("from rank {other} (host")), "rank {number}: {text}");
        assert!(text.contains("'after the cut'") && text.contains("missing:"), "{text}");
    }
}
