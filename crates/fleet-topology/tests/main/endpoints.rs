//! Parsing endpoints from text.

use fleet_topology::Endpoint;

#[test]
fn good_ones_round_trip() {
    for text in ["127.0.0.1:6170", "worker-0.job.svc:1", "[fe80::1]:65535", "a:0"] {
        assert_eq!(text.parse::<Endpoint>().unwrap().to_string(), text);
    }
    let list = Endpoint::list("X", " a:1, b:2").unwrap();
    assert_eq!(Endpoint::join(&list), "a:1,b:2");
    assert!(Endpoint::list("X", "").unwrap().is_empty());
}

#[test]
fn bad_ones_say_what_they_were() {
    let long = format!("{}:1", "h".repeat(300));
    for text in ["", ":1", "a", "a:", "a:x", "a:65536", "a:+1", "::1:80", "[::1:80", "a b:1", &long]
    {
        let error = text.parse::<Endpoint>().unwrap_err().to_string();
        assert!(error.starts_with("not an endpoint: expected HOST:PORT, got '"), "{text}: {error}");
        assert!(error.len() < 160, "{error}");
    }
    let error = Endpoint::list("PADDLE_TRAINER_ENDPOINTS", "a:1,,b:2").unwrap_err().to_string();
    assert!(error.ends_with("at PADDLE_TRAINER_ENDPOINTS"), "{error}");
}
