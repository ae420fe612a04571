use fleet_base::Error;
use fleet_net::Abort;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

#[test]
fn the_first_reason_stays_and_reaches_everybody() {
    let abort = Abort::new();
    let calls = Arc::new(AtomicUsize::new(0));
    let hook = |calls: &Arc<AtomicUsize>| {
        let calls = calls.clone();
        abort.on_fire(move |_| {
            calls.fetch_add(1, Ordering::SeqCst);
        })
    };
    let _kept = hook(&calls);
    drop(hook(&calls));
    let child = abort.child();
    let (tell, told) = mpsc::channel();
    std::thread::scope(|scope| {
        for token in [&abort, &child] {
            let tell = tell.clone();
            scope.spawn(move || tell.send(token.sleep(Duration::from_secs(600)).unwrap_err()));
        }
        assert!(abort.fire(Error::unavailable("first")));
        assert!(!abort.fire(Error::unavailable("second")));
        for _ in 0..2 {
            assert_eq!(told.recv().unwrap().message(), "first");
        }
    });
    assert_eq!(calls.load(Ordering::SeqCst), 1, "a hook that was dropped is not called");
    let _late = hook(&calls);
    assert_eq!(calls.load(Ordering::SeqCst), 2, "a hook that is registered late is called at once");
    assert_ne!(abort.flag().load(Ordering::SeqCst), 0);
    assert!(abort.child().is_fired());
}

#[test]
fn a_child_fires_alone() {
    let parent = Abort::new();
    let child = parent.child();
    child.fire(Error::invalid("only me"));
    assert!(child.is_fired() && !parent.is_fired());
    drop(child);
    assert!(parent.fire(Error::invalid("now me")));
}
