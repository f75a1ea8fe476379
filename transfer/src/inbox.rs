//! Notifications that came and were not taken yet.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Notify;

use crate::pool::lock;

/// Notifications that are kept for whoever asks next; older ones are lost. NIXL itself would keep all for ever.
const MOST: usize = 1 << 16;

/// What another agent said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notification {
    /// The name that it gives itself. Nothing proves it.
    pub agent: String,
    /// Its bytes.
    pub message: Vec<u8>,
}

#[derive(Debug, Default)]
pub(crate) struct Inbox {
    came: Mutex<VecDeque<Notification>>,
    ended: std::sync::atomic::AtomicBool,
    woken: Notify,
    waiting: AtomicUsize,
}

impl Inbox {
    pub(crate) fn put(&self, notification: Notification) {
        let mut came = lock(&self.came);
        if came.len() == MOST {
            came.pop_front();
            tracing::warn!(kept = MOST, "a notification that nobody took is lost");
        }
        came.push_back(notification);
        drop(came);
        self.woken.notify_one();
    }

    /// Nothing comes any more.
    pub(crate) fn end(&self) {
        self.ended.store(true, Ordering::Release);
        self.woken.notify_waiters();
        self.woken.notify_one();
    }

    /// Whether somebody waits.
    pub(crate) fn is_awaited(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }

    /// Waits until something is there, and takes all of it; `None` once nothing can come. `listen` is called when somebody
    /// begins to wait. Nothing is lost when this is dropped.
    pub(crate) async fn take(&self, listen: impl Fn()) -> Option<Vec<Notification>> {
        let _waiting = Waiting::new(&self.waiting);
        listen();
        loop {
            let woken = self.woken.notified();
            let came: Vec<_> = lock(&self.came).drain(..).collect();
            if !came.is_empty() {
                return Some(came);
            }
            if self.ended.load(Ordering::Acquire) {
                // Whoever waits beside this one has to learn it, too.
                self.woken.notify_one();
                return None;
            }
            woken.await;
        }
    }
}

struct Waiting<'a>(&'a AtomicUsize);

impl<'a> Waiting<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
