// SPDX-License-Identifier: MIT OR Apache-2.0
//! Layers: what stands between a door and a driver, and sees every request go down and every reply come up.

use crate::attr::FileKind;
use crate::cx::Cx;
use crate::error::{Error, Result};
use crate::name::Name;
use crate::node::Node;
use crate::notify::Notify;
use crate::ops::Request;
use crate::service::{Abilities, Answer, Recalled, Service};
use std::fmt;
use std::sync::Arc;

/// A layer. The smallest one passes everything on:
///
/// ```
/// use outrigger_core::{Layer, Place};
///
/// struct PassOn;
/// impl Layer for PassOn {
///     fn place(&self) -> Place {
///         Place::anywhere("pass-on")
///     }
/// }
/// ```
pub trait Layer: Send + Sync {
    /// Its name and where in a stack it may stand.
    fn place(&self) -> Place;

    /// Why a request is refused: for a layer that leaves [`Layer::call`] as it is, and passes on whatever it does not refuse.
    fn refusal(&self, _request: &Request) -> Option<Error> {
        None
    }

    /// Answers a request, usually by asking `next`. A started change must be allowed to finish.
    fn call<'a>(&'a self, next: &'a Arc<dyn Service>, cx: &'a Cx, request: Request) -> Answer<'a> {
        match self.refusal(&request) {
            Some(error) => Answer::error(error),
            None => next.call(cx, request),
        }
    }

    /// As [`Service::recall`]. A layer that changes names or numbers translates them, or unsets [`Abilities::recalls`].
    fn recall(&self, next: &Arc<dyn Service>, dir: Node, name: &Name, kind: FileKind) -> Result<Recalled> {
        next.recall(dir, name, kind)
    }

    /// What the stack can do with this layer on top of something that can do `below`.
    fn abilities(&self, below: Abilities) -> Abilities {
        below
    }

    /// Where notices from below go, given where they would go without this layer.
    fn notify(&self, above: Arc<dyn Notify>) -> Arc<dyn Notify> {
        above
    }
}

impl<L: Layer + ?Sized> Layer for Box<L> {
    fn place(&self) -> Place {
        (**self).place()
    }
    fn refusal(&self, request: &Request) -> Option<Error> {
        (**self).refusal(request)
    }
    fn call<'a>(&'a self, next: &'a Arc<dyn Service>, cx: &'a Cx, request: Request) -> Answer<'a> {
        (**self).call(next, cx, request)
    }
    fn recall(&self, next: &Arc<dyn Service>, dir: Node, name: &Name, kind: FileKind) -> Result<Recalled> {
        (**self).recall(next, dir, name, kind)
    }
    fn abilities(&self, below: Abilities) -> Abilities {
        (**self).abilities(below)
    }
    fn notify(&self, above: Arc<dyn Notify>) -> Arc<dyn Notify> {
        (**self).notify(above)
    }
}

/// A layer's name and the order it needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// The layer's name, as given to `--layer`.
    pub name: &'static str,
    /// Layers that, when present, must be nearer to the driver.
    pub above: &'static [&'static str],
    /// Layers that, when present, must be nearer to the door.
    pub below: &'static [&'static str],
}

impl Place {
    /// A layer that may stand anywhere.
    pub const fn anywhere(name: &'static str) -> Self {
        Place { name, above: &[], below: &[] }
    }
}

/// Builds a service from a driver and layers, the one nearest to the driver first.
pub struct Stack {
    top: Arc<dyn Service>,
    places: Vec<Place>,
}

/// The layers cannot stand in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StackError {
    /// The layer that must be nearer to the door.
    pub upper: &'static str,
    /// The layer that must be nearer to the driver.
    pub lower: &'static str,
}

impl fmt::Display for StackError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let StackError { upper, lower } = self;
        write!(f, "layer {upper} must stand above layer {lower}: name {lower} before {upper}")
    }
}

impl std::error::Error for StackError {}

impl Stack {
    /// A stack of `driver` alone.
    pub fn new(driver: Arc<dyn Service>) -> Self {
        Stack { top: driver, places: Vec::new() }
    }

    /// Puts `layer` on top.
    ///
    /// # Errors
    /// [`StackError`] when this layer or one below it declares another order.
    pub fn push(mut self, layer: impl Layer + 'static) -> Result<Self, StackError> {
        let place = layer.place();
        for lower in &self.places {
            if place.below.contains(&lower.name) || lower.above.contains(&place.name) {
                return Err(StackError { upper: lower.name, lower: place.name });
            }
        }
        self.places.push(place);
        self.top = Arc::new(Layered { layer, next: self.top });
        Ok(self)
    }

    /// The names of the layers, from the driver up.
    pub fn names(&self) -> Vec<&'static str> {
        self.places.iter().map(|place| place.name).collect()
    }

    /// What the next layer will stand on.
    pub fn top(&self) -> &Arc<dyn Service> {
        &self.top
    }

    /// The service on top.
    pub fn service(self) -> Arc<dyn Service> {
        self.top
    }
}

struct Layered<L> {
    layer: L,
    next: Arc<dyn Service>,
}

impl<L: Layer> Service for Layered<L> {
    fn call<'a>(&'a self, cx: &'a Cx, request: Request) -> Answer<'a> {
        self.layer.call(&self.next, cx, request)
    }
    fn recall(&self, dir: Node, name: &Name, kind: FileKind) -> Result<Recalled> {
        self.layer.recall(&self.next, dir, name, kind)
    }
    fn abilities(&self) -> Abilities {
        self.layer.abilities(self.next.abilities())
    }
    fn attach(&self, notify: Arc<dyn Notify>) {
        self.next.attach(self.layer.notify(notify));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::Serve;
    use crate::ops::Driver;
    use crate::opset::OpSet;

    struct Nothing;
    impl Driver for Nothing {
        fn abilities(&self) -> Abilities {
            Abilities::new("nothing", "", OpSet::NONE)
        }
    }

    struct Named(Place);
    impl Layer for Named {
        fn place(&self) -> Place {
            self.0
        }
    }

    #[test]
    fn a_wrong_order_is_refused_from_either_side() {
        let crypt = Place { name: "crypt", above: &[], below: &["cache"] };
        let cache = Place { name: "cache", above: &["crypt"], below: &[] };
        let plain = Place::anywhere("trace");
        let stack = || Stack::new(Arc::new(Serve(Nothing)));
        let push = |stack: Stack, place| stack.push(Named(place));
        let good = push(stack(), crypt).and_then(|s| push(s, plain)).and_then(|s| push(s, cache));
        assert_eq!(good.map(|s| s.names()).ok(), Some(vec!["crypt", "trace", "cache"]));
        let bad = push(stack(), cache).and_then(|s| push(s, crypt));
        assert_eq!(bad.err(), Some(StackError { upper: "cache", lower: "crypt" }));
    }
}
