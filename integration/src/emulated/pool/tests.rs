//! What is evicted first, and what is found.

use super::*;

fn hash(of: u8) -> BlockHash {
    [of; 32]
}

fn stored(pool: &mut Pool, of: &[u8]) -> Vec<BlockId> {
    let ids = pool.take(of.len()).unwrap();
    let blocks: Vec<_> = ids
        .iter()
        .copied()
        .zip(of.iter().map(|of| hash(*of)))
        .collect();
    pool.store(&blocks, None, &[], &CacheKeys::default());
    ids
}

#[test]
fn the_tail_of_the_least_recently_used_sequence_goes_first() {
    let mut pool = Pool::new(7, 4);
    let first = stored(&mut pool, &[1, 2, 3]);
    let second = stored(&mut pool, &[4, 5, 6]);
    pool.give_back(&first);
    pool.give_back(&second);
    pool.take_changes();
    pool.take(4).unwrap();
    let gone = [3, 2, 1, 6].map(|of| Change::Removed(hash(of)));
    assert_eq!(pool.take_changes(), gone);
    assert_eq!(pool.longest_prefix(&[hash(4), hash(5), hash(6)]).len(), 2);
}

#[test]
fn what_nobody_can_find_is_used_again_first() {
    let mut pool = Pool::new(7, 4);
    let mut ids = stored(&mut pool, &[1, 2]);
    ids.extend(pool.take(2).unwrap());
    pool.give_back(&ids);
    // Of several, the tail of the sequence.
    assert_eq!(pool.take(3).unwrap(), [ids[3], ids[2], 5]);
}

#[test]
fn a_shared_block_is_not_evicted() {
    let mut pool = Pool::new(3, 4);
    let ids = stored(&mut pool, &[1]);
    pool.give_back(&ids);
    pool.share(&ids);
    assert_eq!(pool.available(), 1);
    assert!(pool.take(2).is_none());
    pool.give_back(&ids);
    assert_eq!(pool.available(), 2);
}

#[test]
fn a_freed_block_keeps_its_bytes_until_it_is_needed() {
    let mut pool = Pool::new(3, 4);
    let ids = stored(&mut pool, &[1]);
    pool.write(ids[0], 0, b"held");
    pool.give_back(&ids);
    assert_eq!(pool.longest_prefix(&[hash(1)]), ids);
    assert_eq!(pool.block(ids[0]).unwrap(), b"held");
    assert_eq!(pool.block(3), None);
    assert_eq!(pool.block(u32::MAX), None);
}

#[test]
fn one_copy_of_two_can_go() {
    let mut pool = Pool::new(3, 4);
    let one = stored(&mut pool, &[1]);
    let two = stored(&mut pool, &[1]);
    pool.give_back(&one);
    pool.take_changes();
    pool.take(1).unwrap();
    assert_eq!(pool.take_changes(), [Change::Removed(hash(1))]);
    assert_eq!(pool.longest_prefix(&[hash(1)]), two);
}

#[test]
fn clearing_forgets_what_is_in_use_too() {
    let mut pool = Pool::new(3, 4);
    let ids = stored(&mut pool, &[1]);
    pool.take_changes();
    pool.clear();
    assert!(pool.longest_prefix(&[hash(1)]).is_empty());
    pool.give_back(&ids);
    pool.take(2).unwrap();
    assert_eq!(pool.take_changes(), [Change::Cleared]);
}

#[test]
fn what_is_evicted_moves_to_the_host_and_back_and_is_in_one_place() {
    let mut pool = Pool::new(3, 4);
    pool.use_host(HostMemory::Evicted(1));
    let ids = stored(&mut pool, &[1, 2]);
    pool.write(ids[0], 0, b"KV 1");
    pool.give_back(&ids);
    pool.take_changes();
    let taken = pool.take(2).unwrap();
    let moved = [
        Change::Offloaded(hash(2)),
        Change::Offloaded(hash(1)),
        Change::RemovedFromHost(hash(2)),
    ];
    assert_eq!(
        pool.take_changes(),
        moved,
        "the tail first, and the host has room for one"
    );
    assert!(pool.held().is_empty());
    assert_eq!(pool.held_by_host(), [hash(1)]);

    pool.give_back(&taken);
    let back = pool.load_back(&[hash(1)], None, &[7; 4], &CacheKeys::default());
    assert_eq!(pool.block(back[0]).unwrap(), b"KV 1");
    assert_eq!(pool.take_changes(), [Change::Onboarded(hash(1))]);
    assert_eq!(pool.held(), [hash(1)]);
    assert!(pool.held_by_host().is_empty());
}

#[test]
fn what_is_computed_again_is_no_longer_the_hosts() {
    let mut pool = Pool::new(2, 4);
    pool.use_host(HostMemory::Evicted(4));
    let first = stored(&mut pool, &[1]);
    pool.give_back(&first);
    let again = pool.take(1).unwrap();
    pool.take_changes();
    let used = pool.insert(&[(again[0], hash(1))], None, &[7; 4], &CacheKeys::default());
    assert_eq!(used, again);
    assert_eq!(pool.take_changes(), [Change::Onboarded(hash(1))]);
    assert!(pool.held_by_host().is_empty());
}
