//! Sending to a peer that may be slow or stuck, without ever waiting for it.

use std::collections::VecDeque;
use std::io;
use std::net::TcpStream;

use rustix::io::Errno;
use rustix::net::{SendFlags, send};

/// Frames on their way to one peer.
#[derive(Debug)]
pub(crate) struct SendQueue {
    frames: VecDeque<Queued>,
    /// Bytes of the first frame that the system has taken.
    taken: usize,
    bytes: usize,
    max_bytes: usize,
    dropped: u64,
}

#[derive(Debug)]
struct Queued {
    bytes: Vec<u8>,
    replaceable: bool,
}

impl SendQueue {
    pub(crate) fn new(max_bytes: usize) -> Self {
        Self { frames: VecDeque::new(), taken: 0, bytes: 0, max_bytes, dropped: 0 }
    }

    /// Queues `bytes`. A replaceable frame (a heartbeat) takes the place of an older one that was not begun, and is
    /// dropped before anything else. `false` when there is no room: the peer does not read.
    pub(crate) fn push(&mut self, bytes: Vec<u8>, replaceable: bool) -> bool {
        let begun = usize::from(self.taken > 0);
        if replaceable || self.bytes + bytes.len() > self.max_bytes {
            let old = (begun..self.frames.len()).find(|index| self.frames[*index].replaceable);
            if let Some(old) = old.and_then(|index| self.frames.remove(index)) {
                self.bytes -= old.bytes.len();
            }
        }
        if self.bytes + bytes.len() > self.max_bytes {
            self.dropped += 1;
            return false;
        }
        self.bytes += bytes.len();
        self.frames.push_back(Queued { bytes, replaceable });
        true
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Frames that found no room.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Hands the system what it takes now.
    pub(crate) fn flush(&mut self, stream: &TcpStream) -> io::Result<()> {
        while let Some(first) = self.frames.front() {
            // The flag, not the descriptor's mode: the descriptor is shared with a reader that blocks.
            match send(
                stream,
                &first.bytes[self.taken..],
                SendFlags::DONTWAIT | SendFlags::NOSIGNAL,
            ) {
                Ok(count) => {
                    self.taken += count;
                    if self.taken >= first.bytes.len() {
                        self.bytes -= first.bytes.len();
                        self.taken = 0;
                        self.frames.pop_front();
                    }
                }
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn a_peer_that_does_not_read_costs_heartbeats_not_time() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut peer, _) = listener.accept().unwrap();
        let mut queue = SendQueue::new(64 * 1024);
        let mut accepted = 0usize;
        while queue.push(vec![1; 8192], false) {
            accepted += 1;
            queue.flush(&stream).unwrap();
        }
        assert!(!queue.push(vec![2; 8192], true));
        assert_eq!(queue.dropped(), 2);
        // Once the peer reads, everything accepted arrives, in order and whole.
        let mut read = 0;
        let mut buffer = [0; 65536];
        while read < accepted * 8192 {
            let count = peer.read(&mut buffer).unwrap();
            assert!(buffer[..count].iter().all(|byte| *byte == 1));
            read += count;
            queue.flush(&stream).unwrap();
        }
        assert!(queue.is_empty());
    }

    #[test]
    fn a_newer_heartbeat_replaces_the_older_one() {
        let mut queue = SendQueue::new(100);
        assert!(queue.push(vec![1; 60], true) && queue.push(vec![2; 60], true));
        assert_eq!((queue.frames.len(), queue.frames[0].bytes[0]), (1, 2));
        // Room for a proposal is made by dropping the heartbeat.
        assert!(queue.push(vec![3; 90], false));
        assert_eq!((queue.frames.len(), queue.frames[0].bytes[0]), (1, 3));
    }
}
