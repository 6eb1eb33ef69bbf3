// SPDX-License-Identifier: MIT OR Apache-2.0
//! Listings that another process can go on with: cookies follow from names.

use outrigger_core::Name;
use outrigger_core::listing::cookie_of;

/// Items with their cookies, in that order; each name once, however often the server tells it.
pub fn in_order<T>(items: Vec<T>, name: impl Fn(&T) -> &Name) -> Vec<(u64, T)> {
    let mut ordered: Vec<(u64, T)> = items.into_iter().map(|item| (cookie_of(name(&item)), item)).collect();
    ordered.sort_by(|(one, a), (other, b)| (one, &name(a)[..]).cmp(&(other, &name(b)[..])));
    ordered.dedup_by(|(_, b), (_, a)| name(a) == name(b));
    let mut last = 0;
    for (cookie, _) in &mut ordered {
        *cookie = (*cookie).max(last + 1);
        last = *cookie;
    }
    ordered
}
