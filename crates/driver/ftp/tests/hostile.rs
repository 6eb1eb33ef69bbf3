// SPDX-License-Identifier: MIT OR Apache-2.0
//! Servers that mean harm, or have gone mad: each ends in a clear error in time.

use outrigger_client::{Client, Follow, Settings};
use outrigger_core::ops::OpenFlags;
use outrigger_core::{Errno, Error, Result, Runtime, Serve};
use outrigger_driver_ftp::{Options, connect};
use outrigger_runtime::Threads;
use outrigger_toolkit_remote::{Authority, FileOptions};
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// What a server does beside what a server should do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Harm {
    None,
    /// Its greeting never ends.
    EndlessLine,
    /// Its reply has lines without end.
    EndlessReply,
    /// It greets with something else.
    Nonsense,
    /// It says nothing.
    Mute,
    /// Its listing never ends.
    EndlessListing,
    /// Its listing is short, and has names that are shorter.
    ManyNames,
    /// A line of its listing never ends.
    EndlessName,
    /// It lists nothing, and does not end either.
    Stall,
    /// It names another host for the data.
    Elsewhere,
    /// It lists names that lead elsewhere.
    Names,
    /// It ends a transfer in its middle.
    Cut,
    /// It lists what is no line of a listing.
    Garbage,
    /// It takes a file, says so, and leaves the connection open.
    Unclosed,
    /// It sends less than it says there is, and says that it was all.
    Short,
}

fn serve(harm: Harm) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    thread::spawn(move || {
        for control in listener.incoming().flatten() {
            // Clients end connections as they like.
            thread::spawn(move || converse(control, harm));
        }
    });
    port
}

fn flood(stream: &mut TcpStream, text: &[u8]) {
    while stream.write_all(&text.repeat(1000)).is_ok() {}
}

fn converse(mut control: TcpStream, harm: Harm) -> Option<()> {
    match harm {
        Harm::EndlessLine => flood(&mut control, b"2"),
        Harm::EndlessReply => flood(&mut control, b"220-hello\r\n"),
        Harm::Nonsense => control.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").ok()?,
        Harm::Mute => thread::sleep(Duration::from_secs(600)),
        _ => control.write_all(b"220 ready\r\n").ok()?,
    }
    let (mut data, mut kept) = (None::<TcpListener>, Vec::new());
    let lines = BufReader::new(control.try_clone().ok()?).lines();
    for line in lines.map_while(std::result::Result::ok) {
        let reply = match line.split(' ').next().unwrap_or_default() {
            "USER" => "230 welcome".to_owned(),
            "FEAT" if harm == Harm::Short => "211-Features\r\n MLST type*;\r\n SIZE\r\n211 End".to_owned(),
            "FEAT" => "211-Features\r\n MLST type*;\r\n211 End".to_owned(),
            "SIZE" => "213 1000000".to_owned(),
            "PWD" => "257 \"/\"".to_owned(),
            "EPSV" => "500 unknown".to_owned(),
            "MLST" if line.ends_with("/new") => "550 new: No such file or directory".to_owned(),
            "STOR" => {
                let (mut stream, _) = data.take()?.accept().ok()?;
                control.write_all(b"150 here\r\n").ok()?;
                std::io::copy(&mut stream, &mut std::io::sink()).ok()?;
                control.write_all(b"226 done\r\n").ok()?;
                kept.push(stream);
                continue;
            }
            "MLST" => "250-\r\n type=file;size=1000000; f\r\n250 End".to_owned(),
            "PASV" => {
                let listener = TcpListener::bind("127.0.0.1:0").ok()?;
                let port = listener.local_addr().ok()?.port();
                data = Some(listener);
                let host = if harm == Harm::Elsewhere { "192,0,2,1" } else { "127,0,0,1" };
                format!("227 ({host},{},{})", port >> 8, port & 255)
            }
            "MLSD" | "RETR" => {
                let (mut stream, _) = data.take()?.accept().ok()?;
                control.write_all(b"150 here\r\n").ok()?;
                send(&mut stream, harm);
                let cut = harm == Harm::Cut && line.starts_with("RETR");
                if cut { "426 cut".to_owned() } else { "226 done".to_owned() }
            }
            _ => "200 fine".to_owned(),
        };
        control.write_all(format!("{reply}\r\n").as_bytes()).ok()?;
    }
    Some(())
}

fn send(stream: &mut TcpStream, harm: Harm) {
    let names = match harm {
        Harm::Names => "type=file;size=1; ../x\r\ntype=file;size=1; a/b\r\n",
        Harm::Garbage => "hello\r\n",
        _ => "type=cdir; .\r\ntype=dir; ..\r\n",
    };
    let names = [names, "type=file;size=1; good\r\n"].concat();
    match harm {
        Harm::EndlessListing => flood(stream, b"type=file;size=1; name\r\n"),
        Harm::ManyNames => drop(stream.write_all(&b"type=f; a\n".repeat(20_000))),
        Harm::EndlessName => flood(stream, b"x"),
        Harm::Stall => thread::sleep(Duration::from_secs(600)),
        // A client that went away does not matter here.
        _ => drop(stream.write_all(names.as_bytes())),
    }
}

fn open(harm: Harm) -> Result<(Client, Arc<Threads>)> {
    let files = FileOptions {
        timeout: Duration::from_millis(500),
        max_listing: 1 << 20,
        netrc: None,
        ..FileOptions::default()
    };
    let options = Options { files, ..Options::default() };
    let server = Authority::parse(&format!("127.0.0.1:{}", serve(harm))).expect("a server");
    let runtime = Arc::new(Threads::new());
    let connecting = connect(server, options, Arc::clone(&runtime) as Arc<dyn Runtime>, None);
    let ftp = runtime.handle().block_on(connecting)?;
    let client = Client::new(Arc::new(Serve(ftp)), runtime.clone(), Settings::default());
    Ok((client, runtime))
}

/// The names that are listed, and the error after them.
fn list(harm: Harm) -> Result<(Vec<String>, Option<Error>)> {
    let (client, _runtime) = open(harm)?;
    let root = client.walk(b"/", Follow::Yes)?;
    let mut names = Vec::new();
    for entry in root.entries()? {
        match entry {
            Ok((name, _)) => names.push(String::from_utf8_lossy(&name).into_owned()),
            Err(unreadable) => return Ok((names, Some(unreadable.error))),
        }
    }
    Ok((names, None))
}

/// The work ends by itself; a test that hangs ends the process.
fn in_time<T>(work: impl FnOnce() -> T) -> T {
    let done = Arc::new(AtomicBool::new(false));
    let watched = Arc::clone(&done);
    thread::spawn(move || {
        thread::sleep(Duration::from_secs(60));
        if !watched.load(Ordering::Acquire) {
            eprintln!("a hostile server made the client hang");
            std::process::abort();
        }
    });
    let outcome = work();
    done.store(true, Ordering::Release);
    outcome
}

#[test]
fn what_never_ends_or_makes_no_sense_is_an_error() {
    for (harm, errno, words) in [
        (Harm::EndlessLine, Errno::EPROTO, "a line of more than"),
        (Harm::EndlessReply, Errno::EPROTO, "a reply of more than"),
        (Harm::Nonsense, Errno::EPROTO, "does not begin with a code"),
        (Harm::Mute, Errno::ETIMEDOUT, "nothing came for 0.5 s"),
        (Harm::EndlessListing, Errno::EFBIG, "max_listing"),
        (Harm::EndlessName, Errno::EPROTO, "the server lists a line of more than"),
        (Harm::Stall, Errno::ETIMEDOUT, "nothing came for 0.5 s"),
    ] {
        let Error { errno: found, reason, .. } = in_time(|| list(harm)).expect_err("an error");
        let reason = reason.unwrap_or_default();
        assert_eq!(found, errno, "{harm:?}: {reason}");
        assert!(reason.contains(words), "{harm:?}: {reason}");
    }
}

/// What is made of 200 kB takes several megabytes.
#[test]
fn the_memory_that_a_listing_takes_is_bounded_not_its_text() {
    let error = in_time(|| list(Harm::ManyNames)).expect_err("more than a mebibyte");
    assert_eq!(error.errno, Errno::EFBIG, "{error}");
    assert!(error.to_string().contains("more than 1048576 bytes of memory"), "{error}");
}

#[test]
fn data_comes_from_the_host_of_the_control_connection_whatever_pasv_says() {
    let (names, error) = in_time(|| list(Harm::Elsewhere)).expect("listed");
    assert_eq!((names, error), (vec!["good".to_owned()], None));
}

#[test]
fn what_is_listed_and_is_no_name_is_not_shown_and_is_an_error_after_all_names() {
    for (harm, line) in [(Harm::Names, "../x"), (Harm::Garbage, "hello")] {
        let (names, error) = in_time(|| list(harm)).expect("listed");
        let error = error.expect("something may be missing");
        assert_eq!((names, error.errno), (vec!["good".to_owned()], Errno::EIO), "{harm:?}");
        assert!(error.to_string().contains(line), "{error}");
    }
}

#[test]
fn an_upload_ends_when_the_server_says_so_also_where_it_does_not_close_the_connection() {
    in_time(|| {
        let (client, _runtime) = open(Harm::Unclosed)?;
        let root = client.root()?;
        let name = outrigger_core::Name::try_from("new")?;
        let (_, file) = root.create(&name, 0o644, OpenFlags::WRITE_ONLY)?;
        file.write_all_at(0, b"content".to_vec().into())?;
        file.close()
    })
    .expect("stored");
}

#[test]
fn a_transfer_that_the_server_cuts_is_no_end_of_the_file() {
    let read = in_time(|| {
        let (client, _runtime) = open(Harm::Cut)?;
        client.walk(b"/f", Follow::Yes)?.open(OpenFlags::empty())?.read_at(0, 1000)
    });
    assert_eq!(read.expect_err("it was cut").errno, Errno::EIO);
}

#[test]
fn a_file_of_which_less_comes_than_its_size_has_not_ended() {
    let read = in_time(|| {
        let (client, _runtime) = open(Harm::Short)?;
        client.walk(b"/f", Follow::Yes)?.open(OpenFlags::empty())?.read_at(0, 1000)
    });
    let error = read.expect_err("the rest is missing");
    assert!(error.to_string().contains("a file of 1000000 bytes"), "{error}");
}

#[test]
fn a_file_of_which_less_comes_than_was_told_is_not_changed() {
    let written = in_time(|| {
        let (client, _runtime) = open(Harm::None)?;
        let file = client.walk(b"/f", Follow::Yes)?.open(OpenFlags::READ_WRITE)?;
        file.write_all_at(0, b"new".to_vec().into())
    });
    assert_eq!(written.expect_err("the rest would be lost").errno, Errno::EIO);
}
