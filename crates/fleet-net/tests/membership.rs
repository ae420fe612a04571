//! Heartbeats between threads. Tests that need real processes are in `processes`.

use crate::proxy::Proxy;
use fleet_base::{Error, ErrorKind};
use fleet_net::{
    Abort, FailureCause, FailureNotice, Limits, Log, Member, Membership, StoreServer, Token,
    Vigilance,
};
use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

const WAIT: Duration = Duration::from_secs(60);

fn quick() -> Vigilance {
    Vigilance {
        beat: Duration::from_millis(20),
        silence: Duration::from_secs(20),
        grace: Duration::from_millis(200),
    }
}

fn member(rank: usize) -> Member {
    Member { rank, host: "here".into(), host_id: "here".into(), pid: 100 + rank as u32 }
}

fn join(address: SocketAddr, token: &Token, rank: usize) -> (Membership, Receiver<FailureNotice>) {
    let (tell, told) = channel();
    let limits = Limits::within(WAIT);
    let own = Membership::join(address, token, "job/0", member(rank), &limits, move |notice| {
        // The test may have ended.
        let _ = tell.send(notice.clone());
    });
    (own.unwrap(), told)
}

#[test]
fn who_leaves_is_not_missed_and_who_is_cut_off_is() {
    let token = Token::generate().unwrap();
    let server = StoreServer::bind("127.0.0.1:0", &token, quick(), Log::stderr()).unwrap();
    let (_zero, told) = join(server.address(), &token, 0);
    let (one, _) = join(server.address(), &token, 1);
    assert_eq!(one.vigilance(), quick());
    one.leave();
    let proxy = Proxy::start(server.address(), 1, usize::MAX);
    let (two, told_two) = join(proxy.address(), &token, 2);
    // Nothing listens at the address of its next connection.
    proxy.redirect("127.0.0.1:9".parse().unwrap());
    proxy.cut_all();
    let notice = told.recv_timeout(WAIT).unwrap();
    assert_eq!((notice.member, notice.cause), (member(2), FailureCause::Died));
    // From its own point of view the store is lost.
    assert_eq!(told_two.recv_timeout(WAIT).unwrap().cause, FailureCause::StoreLost);
    assert_eq!(two.notices().len(), 1);
    // A member that joins late is notified of earlier failures.
    let (_three, told) = join(server.address(), &token, 3);
    assert_eq!(told.recv_timeout(WAIT).unwrap().member, member(2));
}

#[test]
fn a_connection_that_comes_back_is_no_death() {
    let token = Token::generate().unwrap();
    let patient = Vigilance { grace: Duration::from_secs(20), ..quick() };
    let server = StoreServer::bind("127.0.0.1:0", &token, patient, Log::stderr()).unwrap();
    let proxy = Proxy::start(server.address(), 1, usize::MAX);
    let (_zero, told) = join(server.address(), &token, 0);
    let (one, _) = join(proxy.address(), &token, 1);
    proxy.cut_all();
    // It reconnects and can report.
    one.report_end(&member(7), "exit code 3");
    let notice = told.recv_timeout(WAIT).unwrap();
    assert_eq!(notice.member, member(7));
    let text = notice.error().to_string();
    assert!(text.starts_with("rank 7 (host here, pid 107) died: exit code 3; last"), "{text}");
    assert!(one.notices().iter().all(|notice| notice.member.rank == 7));
}

#[test]
fn the_loss_of_the_store_is_told() {
    let token = Token::generate().unwrap();
    let server = StoreServer::bind("127.0.0.1:0", &token, quick(), Log::stderr()).unwrap();
    let address = server.address();
    let (_one, told) = join(address, &token, 1);
    drop(server);
    let notice = told.recv_timeout(WAIT).unwrap();
    assert_eq!(notice.cause, FailureCause::StoreLost);
    let text = notice.error().to_string();
    assert!(text.contains("the host of the store is lost"), "{text}");
    assert!(text.contains(&address.to_string()), "{text}");
}

#[test]
fn a_seat_is_for_one_process() {
    let token = Token::generate().unwrap();
    let server = StoreServer::bind("127.0.0.1:0", &token, quick(), Log::stderr()).unwrap();
    let (_one, _) = join(server.address(), &token, 1);
    let again = |group: &str, span| {
        let limits = Limits::within(span);
        Membership::join(server.address(), &token, group, member(1), &limits, |_| {})
    };
    // A rejected process retries until its deadline. On a busy machine, one answer may take long.
    let spans = [100, 1_000, 10_000, 60_000].map(Duration::from_millis);
    let mut errors = spans.into_iter().map(|span| again("job/0", span).err().unwrap());
    let is_answered = |error: &Error| error.message().contains("already in use");
    let error = errors.find(is_answered).expect("an answer within a minute");
    assert!(error.message().contains("already in use by rank 1 (host here, pid 101)"), "{error}");
    again("job/1", WAIT).unwrap().leave();
    assert_eq!(again("", WAIT).err().unwrap().kind(), ErrorKind::Invalid);
}

#[test]
fn joining_can_be_aborted() {
    let token = Token::generate().unwrap();
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = nobody.local_addr().unwrap();
    let abort = Abort::new();
    std::thread::scope(|scope| {
        let limits = Limits::new(fleet_net::Deadline::never(), &abort);
        let join =
            scope.spawn(move || Membership::join(address, &token, "g", member(0), &limits, |_| {}));
        abort.fire(Error::unavailable("enough"));
        assert!(join.join().unwrap().err().unwrap().to_string().contains("enough"));
    });
}
