use super::*;
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;

fn served(address: &str) -> (Served, Address) {
    let endpoint = Endpoint::bind(&Address::parse(address).unwrap()).unwrap();
    let address = endpoint.address.clone();
    (endpoint.serve(|| Some("x 1\n".repeat(100_000))).unwrap(), address)
}

fn connect(address: &Address) -> TcpStream {
    let Address::Internet(address) = address else { panic!("{address} is not of the internet") };
    TcpStream::connect(address).unwrap()
}

fn ask(stream: &mut (impl Read + Write), request: &str) -> String {
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn a_client_gets_the_whole_text_and_the_end_of_the_connection() {
    let (_served, address) = served("127.0.0.1:0");
    let answer = ask(&mut connect(&address), "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4"), "{head}");
    assert!(head.contains("\r\nContent-Length: 400000\r\n"), "{head}");
    assert_eq!(body.len(), 400_000);
    let answer = ask(&mut connect(&address), "HEAD /metrics HTTP/1.0\r\n\r\n");
    assert!(answer.contains("Content-Length: 400000\r\n") && answer.ends_with("\r\n\r\n"), "{answer}");
}

#[test]
fn other_requests_are_answered_with_an_error() {
    let (_served, address) = served("127.0.0.1:0");
    for (request, status) in [
        ("GET / HTTP/1.1\r\n\r\n".to_owned(), "404"),
        ("POST /metrics HTTP/1.1\r\n\r\n".to_owned(), "405"),
        ("GET /metrics\r\n\r\n".to_owned(), "400"),
        ("\r\n\r\n".to_owned(), "400"),
        (format!("GET /{} HTTP/1.1\r\n", "x".repeat(REQUEST_BYTES_MAX)), "400"),
    ] {
        let mut stream = connect(&address);
        // What comes behind a refusal may be answered with a reset.
        stream.write_all(request.as_bytes()).unwrap();
        let mut first = [0; 12];
        stream.read_exact(&mut first).unwrap();
        assert_eq!(&first[9..], status.as_bytes(), "{request:.40}");
    }
}

#[test]
fn clients_that_say_nothing_or_read_nothing_hold_nobody_up() {
    let (_served, address) = served("127.0.0.1:0");
    let silent: Vec<TcpStream> = (0..3 * CLIENTS_MAX).map(|_| connect(&address)).collect();
    let mut deaf: Vec<TcpStream> = (0..CLIENTS_MAX).map(|_| connect(&address)).collect();
    for stream in &mut deaf {
        let _ = stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n");
    }
    let answer = ask(&mut connect(&address), "GET /metrics HTTP/1.1\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer:.40}");
    // Each of them ends: the oldest because others came, the last because its time is over.
    for mut stream in silent {
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest);
        assert!(rest.is_empty());
    }
}

#[test]
fn a_socket_is_its_owners_alone_and_goes_with_the_mount() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("metrics");
    let address = format!("unix:{}", path.display());
    let (first, _) = served(&address);
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let answer = ask(&mut UnixStream::connect(&path).unwrap(), "GET /metrics HTTP/1.1\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer:.40}");
    let taken = Endpoint::bind(&Address::parse(&address).unwrap()).unwrap_err();
    assert!(taken.to_string().contains("in use"), "{taken}");
    drop(first);
    assert!(!path.exists());
    // What a killed daemon has left makes room, what is no socket does not.
    drop(UnixListener::bind(&path).unwrap());
    drop(served(&address));
    std::fs::write(&path, "mine").unwrap();
    assert!(Endpoint::bind(&Address::parse(&address).unwrap()).is_err());
    assert_eq!(std::fs::read(&path).unwrap(), b"mine");
}

#[test]
fn a_closed_volume_has_no_metrics() {
    let text = String::from_utf8(answer(b"GET /metrics HTTP/1.1\r\n\r\n", true, &|| None)).unwrap();
    assert!(text.starts_with("HTTP/1.1 503"), "{text}");
}
