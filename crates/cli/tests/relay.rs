// SPDX-License-Identifier: MIT OR Apache-2.0
//! The example `relay` between a client and a server.

#[path = "../examples/relay.rs"]
mod relay;

use outrigger_client::{Client, Settings};
use outrigger_core::ops::OpenFlags;
use outrigger_core::{Name, Runtime, Serve};
use outrigger_driver_nfs::{Nfs, Options};
use outrigger_remote::Nfsd;
use outrigger_runtime::Threads;
use relay::Relay;
use std::io::{self, Write};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;
use std::{fs, thread};

/// What was printed.
#[derive(Clone, Default)]
struct Printed(Arc<(Mutex<Vec<u8>>, Condvar)>);

impl Write for Printed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.0.lock().unwrap().extend_from_slice(bytes);
        self.0.1.notify_all();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Printed {
    /// Waits for a line with these words.
    fn wait_for(&self, words: [&str; 2]) {
        let has = |text: &[u8]| {
            let text = String::from_utf8_lossy(text).into_owned();
            text.lines().any(|line| words.iter().all(|word| line.contains(word)))
        };
        let limit = Duration::from_secs(60);
        let printed =
            self.0.1.wait_timeout_while(self.0.0.lock().unwrap(), limit, |text| !has(text)).unwrap().0;
        assert!(has(&printed), "{words:?}: {}", String::from_utf8_lossy(&printed));
    }
}

#[test]
fn the_relay_passes_on_what_clients_do_and_prints_it() {
    if !rustix::process::geteuid().is_root() {
        assert!(std::env::var_os("CI").is_none(), "root must be here");
        return eprintln!("SKIPPED: only root serves files of all users");
    }
    let dir = tempfile::tempdir().unwrap();
    let server = Nfsd::Own.start(dir.path()).unwrap();
    let printed = Printed::default();
    let listen = "127.0.0.1:0".parse().unwrap();
    let place = ("127.0.0.1", server.port());
    let relay = Relay::new(place, &server.export(), listen, Box::new(printed.clone())).unwrap();
    let port = Some(relay.address.port());
    thread::spawn(move || relay.run());

    let runtime = Arc::new(Threads::new());
    let (options, clock) = (Options { port, ..Options::default() }, Arc::clone(&runtime) as Arc<dyn Runtime>);
    let near = Nfs::connect("127.0.0.1".to_owned(), Some(b"/"), options, clock, None);
    let near = runtime.handle().block_on(near).unwrap();
    let root = Client::new(Arc::new(Serve(near)), runtime.clone(), Settings::default()).root().unwrap();
    let content: Vec<u8> = (0..500_000_u32).flat_map(u32::to_le_bytes).collect();
    let flags = OpenFlags::READ_WRITE | OpenFlags::EXCL;
    let name = Name::try_from("file").unwrap();
    let file = root.create(&name, 0o644, flags).unwrap().1;
    file.write_all_at(0, content.clone().into()).unwrap();
    file.close().unwrap();
    assert!(fs::read(server.root().join("file")).unwrap() == content);
    let file = root.lookup(&name).unwrap().open(OpenFlags::empty()).unwrap();
    assert!(file.read_at(4000, 4000).unwrap() == content[4000..8000]);
    file.close().unwrap();
    root.unlink(&name).unwrap();
    assert_eq!(fs::read_dir(server.root()).unwrap().count(), 0);
    printed.wait_for(["write /file", "len="]);
    printed.wait_for(["unlink /file", " = "]);
}
