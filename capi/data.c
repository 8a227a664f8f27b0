// SPDX-License-Identifier: MIT
/*
 * data.c - gdr_copy_to_mapping and gdr_copy_from_mapping, of one piece or of many.
 *
 * They never enter Go and take no lock. A copy that its caller makes alone writes no cache
 * line that another thread writes. A long copy may be shared with other threads, or be
 * handed to the CUDA driver (long.h). docs/design.md states the protocol that keeps
 * gdr_unmap from taking a mapping away under a copy.
 */
#define _GNU_SOURCE
#include "data.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <time.h>

#include "../include/gdrapi_ext.h"
#include "copy/copy.h"
#include "copy/direct.h"
#include "copy/fence.h"
#include "copy/signals.h"
#include "host/front.h"
#include "host/log.h"
#include "long/long.h"

/*
 * What this thread knows of the table it copies through. It belongs to one epoch. After a
 * fork the parent's table is gone and must not be touched.
 *
 * A signal handler may copy inside a copy, so there are nesting levels. Level i is in use
 * while the record's busy[i] is not 0. frame[i] is the stack address of the copy at level
 * i. It shows whether that copy is still under way or was left by siglongjmp. At a free
 * level frame[i] is that of the last copy there. No one clears it, as each store between
 * two fences takes time.
 *
 * A copy takes a level so:
 *
 * 1. It sets frame[i].
 * 2. It sets busy[i].
 * 3. It checks that frame[i] is still its own. If not, it starts again.
 *
 * A handler that ran in between may have copied at this level. Its copy lay deeper on the
 * stack, or on another stack, and left its own frame. Then busy[i] is not reliable
 * either: a later handler may have compared frames and cleared it. After step 3 has
 * succeeded, frame[i] and busy[i] stay as they are until the copy ends. A handler's copy
 * takes another level.
 */
struct copy_thread {
	const struct gdr_front *front;	/* never NULL */
	uint64_t epoch;			/* front's, or NO_EPOCH */
	_Atomic uint64_t *busy;		/* of this thread's record */
	struct gdr_table *table;
	struct gdr_slot *slots;
	const struct copy_impl *impl;
	volatile uintptr_t frame[GDR_HAZARD_LEVELS];
	uintptr_t alt_start, alt_bytes;	/* of the last stack seen with SS_AUTODISARM */
	uint64_t many;			/* copies of many pieces so far */
};

#ifndef SS_AUTODISARM
#define SS_AUTODISARM (1u << 31)	/* Linux 4.7 */
#endif

#define NO_EPOCH UINT64_MAX

static const struct gdr_front no_front;
static __thread struct copy_thread this_thread __attribute__((tls_model("initial-exec"))) = {
	.front = &no_front,
	.epoch = NO_EPOCH,
};

/*
 * Without membarrier(2), or until the process is registered for it, copies must fence. Then
 * the thread's epoch has this bit set, so it does not match the front's epoch, and all
 * copies take copy_at_free_level. It clears the bit when the barrier has come.
 */
#define MUST_FENCE (1ull << 63)

static bool record_is_ours(void)
{
	return this_thread.busy && this_thread.front->epoch == (this_thread.epoch & ~MUST_FENCE);
}

/*
 * A thread that ends does not free its record: other threads do (docs/design.md). The C
 * library's hooks for the end of a thread allocate memory, and a first copy may run in a
 * handler that has interrupted malloc.
 */
#define RECORDS_AT_FIRST 64
#define TRIES_AWAKE 20u		/* of an unmap that waits: a copy of some KiB ends meanwhile */
#define TRIES_FOR_ENDED 64u	/* so often it looks for threads that have ended */
#define BEING_FREED UINT32_MAX	/* no thread's ID */

/* From a thread's own data to where the C library has its ID. The kernel clears that at its end. */
static _Atomic intptr_t to_thread_id;

static void note_self(struct gdr_hazard *record)
{
	int *id = NULL;

	if (prctl(PR_GET_TID_ADDRESS, &id) || !id)
		return;
	atomic_store(&to_thread_id, (intptr_t)id - (intptr_t)&this_thread);
	/* Last: until then a reader has the thread's ID alone. */
	atomic_store_explicit(&record->self, (uintptr_t)&this_thread, memory_order_release);
}

/*
 * Whether the living thread with the owner's ID is another one. The owner's data are in
 * its own memory. That of a thread that has ended may be gone, so the kernel reads it.
 */
static bool is_another(const struct gdr_hazard *record, uint32_t owner)
{
	uintptr_t self = atomic_load_explicit(&record->self, memory_order_acquire);
	const struct copy_thread *theirs = (const struct copy_thread *)self;
	const void *busy = NULL;
	uint32_t id = 0;
	const struct iovec to[] = { { &busy, sizeof(busy) }, { &id, sizeof(id) } };
	const struct iovec from[] = {
		{ (void *)&theirs->busy, sizeof(busy) },
		{ (void *)(self + (uintptr_t)atomic_load(&to_thread_id)), sizeof(id) },
	};
	ssize_t n;

	if (!self)
		return false;
	n = process_vm_readv(getpid(), to, 2, from, 2, 0);
	if (n < 0)
		return errno == EFAULT;
	return n < (ssize_t)(sizeof(busy) + sizeof(id)) || busy != record->busy || id != owner;
}

static bool has_ended(const struct gdr_hazard *record, uint32_t owner)
{
	return (syscall(SYS_tgkill, getpid(), owner, 0) && errno == ESRCH) || is_another(record, owner);
}

static struct gdr_hazard *record_at(const struct gdr_table *table, uint32_t i)
{
	struct gdr_hazard *end = (struct gdr_hazard *)(uintptr_t)table->hazards + GDR_HAZARD_COUNT;

	return end - 1 - i;
}

/* If the thread ended in the midst of a copy, that copy stops here. */
static void free_record(const struct gdr_front *front, struct gdr_hazard *record, uint32_t owner)
{
	if (!atomic_compare_exchange_strong(&record->owner, &owner, BEING_FREED))
		return;
	gdr_long_forget(front, record->busy);
	for (int i = 0; i < GDR_HAZARD_LEVELS; i++)
		atomic_store_explicit(&record->busy[i], 0, memory_order_release);
	atomic_store(&record->self, 0);
	atomic_store_explicit(&record->owner, 0, memory_order_release);
}

/* Frees the records of threads that have ended. Returns how many are left. */
static uint32_t free_records(const struct gdr_front *front, uint32_t used)
{
	uint32_t left = 0;

	for (uint32_t i = 0; i < used; i++) {
		struct gdr_hazard *record = record_at(front->table, i);
		uint32_t owner = atomic_load_explicit(&record->owner, memory_order_relaxed);

		if (!owner || owner == BEING_FREED)
			continue;
		if (has_ended(record, owner))
			free_record(front, record, owner);
		else
			left++;
	}
	return left;
}

/* Takes a free record out of the first n. Returns NULL if there is none. */
static struct gdr_hazard *claim_of(struct gdr_table *table, uint32_t n, uint32_t thread)
{
	for (uint32_t i = 0; i < n; i++) {
		struct gdr_hazard *record = record_at(table, i);
		uint32_t none = 0, used;

		if (atomic_load_explicit(&record->owner, memory_order_relaxed) ||
		    !atomic_compare_exchange_strong(&record->owner, &none, thread))
			continue;
		used = atomic_load(&table->hazards_used);
		while (used <= i &&
		       !atomic_compare_exchange_weak(&table->hazards_used, &used, i + 1))
			;
		return record;
	}
	return NULL;
}

/* Takes a free record. Returns NULL if that many living threads have copied. */
static struct gdr_hazard *claim(const struct gdr_front *front)
{
	static _Atomic uint32_t most = RECORDS_AT_FIRST;
	uint32_t thread = (uint32_t)syscall(SYS_gettid), left;
	struct gdr_hazard *record;

	record = claim_of(front->table, atomic_load(&most), thread);
	if (record)
		return record;
	left = free_records(front, atomic_load(&front->table->hazards_used));
	if (left > GDR_HAZARD_COUNT / 2)
		left = GDR_HAZARD_COUNT / 2;
	atomic_store(&most, left < RECORDS_AT_FIRST / 2 ? RECORDS_AT_FIRST : 2 * left);
	return claim_of(front->table, GDR_HAZARD_COUNT, thread);
}

/*
 * Whether a frame is on another stack than the thread's own. The kernel forgets a stack
 * with SS_AUTODISARM while a handler runs on it, so we remember it.
 */
static bool is_on_other_stack(uintptr_t frame)
{
	stack_t stack;

	if (sigaltstack(NULL, &stack))
		return true;
	if (!(stack.ss_flags & SS_DISABLE)) {
		this_thread.alt_start = (uintptr_t)stack.ss_sp;
		this_thread.alt_bytes = stack.ss_flags & SS_AUTODISARM ? stack.ss_size : 0;
	}
	return stack.ss_flags & SS_ONSTACK || frame - this_thread.alt_start < this_thread.alt_bytes;
}

/*
 * A thread's first copy in this process. Signals are held off: a handler that copies must
 * not find a record that is half filled in.
 */
static int take_record(const struct gdr_front *front)
{
	struct gdr_hazard *hazard;
	int error = errno;
	uint64_t held;

	gdr_hold_signals(gdr_signal_bit(SIGSYS), &held);
	hazard = claim(front);
	if (hazard) {
		this_thread = (struct copy_thread){
			.front = front,
			.epoch = front->epoch | (atomic_load(&front->table->fenced) ? MUST_FENCE : 0),
			.busy = hazard->busy,
			.table = front->table,
			.slots = (struct gdr_slot *)(uintptr_t)front->table->slots,
			.impl = front->impl,
		};
		note_self(hazard);
		is_on_other_stack(0);
	}
	gdr_release_signals(held);
	errno = error;
	if (!hazard)
		gdr_log(GDR_LOG_ERROR, "gdr_copy: %u threads are copying already", GDR_HAZARD_COUNT);
	return hazard ? 0 : EAGAIN;
}

/* Logs and returns why key cannot be copied through, once that is certain. */
static int refuse(uint64_t key)
{
	if (gdr_front_inherited(key)) {
		gdr_log(GDR_LOG_ERROR, "gdr_copy: a handle from before fork() does not work in the child; open, pin and map here (errno %d)",
			EACCES);
		return EACCES;
	}
	gdr_log(GDR_LOG_ERROR, "gdr_copy: handle %#lx is not mapped (errno %d)", key, EINVAL);
	return EINVAL;
}

/* The key that is announced at a level; 0: the level is free. */
static inline __attribute__((always_inline)) uint64_t busy(unsigned int level)
{
	return atomic_load_explicit(&this_thread.busy[level], memory_order_relaxed);
}

/* The announcement counts once frame[level] was found to be the copy's own after it. */
static inline __attribute__((always_inline)) void announce(unsigned int level, uint64_t key)
{
	atomic_signal_fence(memory_order_seq_cst);
	atomic_store_explicit(&this_thread.busy[level], key, memory_order_relaxed);
	atomic_signal_fence(memory_order_seq_cst);
}

static inline void leave_level(unsigned int level)
{
	atomic_store_explicit(&this_thread.busy[level], 0, memory_order_release);
}

/*
 * Ends a copy that was left by siglongjmp. A copy at level 0 may have had other threads
 * at work.
 */
static __attribute__((noinline, cold)) void abandon_level(unsigned int level)
{
	if (level == 0)
		gdr_long_forget(this_thread.front, this_thread.busy);
	leave_level(level);
}

/* A level that is taken after it was found free is that of a copy that a handler left since. */
static inline __attribute__((always_inline)) void
enter_level(unsigned int level, uint64_t key, uintptr_t frame)
{
	do {
		this_thread.frame[level] = frame;
		atomic_signal_fence(memory_order_seq_cst);
		if (__builtin_expect(busy(level) != 0, 0))
			abandon_level(level);
		announce(level, key);
	} while (this_thread.frame[level] != frame);
}

/*
 * Frees the levels of copies that a signal handler left by siglongjmp (after SIGBUS on a
 * revoked mapping, say). The function at frame is still running. So a copy whose frame
 * was there or below is over. On an alternate stack, addresses do not show that.
 */
static void drop_left_copies(uintptr_t frame)
{
	if (is_on_other_stack(frame))
		return;
	for (unsigned int i = 0; i < GDR_HAZARD_LEVELS; i++)
		if (busy(i) && this_thread.frame[i] <= frame)
			abandon_level(i);
}

static const struct gdr_hazard *record_here(void)
{
	return (const struct gdr_hazard *)((uintptr_t)this_thread.busy -
					   offsetof(struct gdr_hazard, busy));
}

void gdr_data_forget(uint64_t key)
{
	if (!record_is_ours())
		return;
	for (unsigned int i = 0; i < GDR_HAZARD_LEVELS; i++)
		if (busy(i) && (!key || gdr_copy_has(record_here(), busy(i), key)))
			abandon_level(i);
}

/* A sleep of some 50 us, also for a thread with much slack in its timers. */
static void sleep_shortly(void)
{
	const struct timespec t = { .tv_nsec = 50000 };
	unsigned int slack = (unsigned int)prctl(PR_GET_TIMERSLACK);
	uint64_t mask;

	/* A handler must not leave with another slack. */
	gdr_hold_signals(gdr_signal_bit(SIGSETXID), &mask);
	prctl(PR_SET_TIMERSLACK, 1ul);
	syscall(SYS_nanosleep, &t, NULL);
	prctl(PR_SET_TIMERSLACK, (unsigned long)slack);
	gdr_release_signals(mask);
}

void gdr_data_wait(unsigned int tries)
{
	const struct gdr_front *front = gdr_front_here();
	int error = errno;

	if (front && tries % TRIES_FOR_ENDED == TRIES_FOR_ENDED - 1)
		free_records(front, atomic_load(&front->table->hazards_used));
	if (tries < TRIES_AWAKE)
		sched_yield();
	else
		sleep_shortly();
	errno = error;
}

/* One copy, as the caller asked for it. */
struct request {
	uint64_t key;
	void *dev;
	void *host;
	size_t size;
	bool to;	/* the device */
};

static inline const struct gdr_slot *slot_of(uint64_t key)
{
	return &this_thread.slots[key & (GDR_SLOT_COUNT - 1)];
}

/* An empty slot has key 0. */
static inline bool unmapped(uint64_t key)
{
	return !key || atomic_load_explicit(&slot_of(key)->key, memory_order_acquire) != key;
}

/* Not 0 while mappings of more than one type are live. Then writes need the full fence. */
static inline uint32_t mixed(void)
{
	return atomic_load_explicit(&this_thread.table->mixed, memory_order_relaxed);
}

/*
 * Whether this is the usual case: size is not 0, and the bytes lie in a live mapping of
 * WC memory. The compiler lays this out as branches that are never taken, with few
 * registers, so the caller saves none.
 */
static inline bool is_usual(uint64_t key, const void *dev, const void *host, size_t size)
{
	const struct gdr_slot *slot = slot_of(key);
	uint64_t off = (uintptr_t)dev;

	if (!host || unmapped(key) || slot->type != GDR_MAPPING_TYPE_WC)
		return false;
	off -= slot->va;
	return size - 1 < slot->len && off <= slot->len - size;
}

static inline void end_write(bool fully)
{
	if (fully)
		copy_fence_full();
	else
		copy_fence_store();
}

/* Without fences. */
static inline void move_bytes(const struct request *r, uint32_t type)
{
	const struct copy_impl *impl = type == GDR_MAPPING_TYPE_WC ? this_thread.impl : &copy_portable;
	void *dst = r->to ? r->dev : r->host;
	const void *src = r->to ? r->host : r->dev;

	if (type == GDR_MAPPING_TYPE_CACHING)
		memcpy(dst, src, r->size);
	else
		(r->to ? impl->to : impl->from)(dst, src, r->size);
}

static void move(const struct request *r, uint32_t type)
{
	if (r->to) {
		move_bytes(r, type);
		end_write(mixed());
		return;
	}
	copy_fence_read_begin();
	move_bytes(r, type);
	copy_fence_read_end();
}

/* Carries out a request that is announced at level, or finds out why not. */
static int finish_checked(const struct request *r, unsigned int level)
{
	const struct gdr_slot *slot = slot_of(r->key);
	bool mapped = !unmapped(r->key), inside = true;
	uint64_t off;

	if (mapped && r->size) {
		off = (uintptr_t)r->dev - slot->va;
		inside = off <= slot->len && r->size <= slot->len - off;
		if (inside && r->host)
			move(r, slot->type);
	}
	leave_level(level);
	if (!mapped)
		return refuse(r->key);
	if (!inside)
		gdr_log(GDR_LOG_ERROR, "gdr_copy: %zu bytes at %#lx do not lie in the mapping of handle %#lx (errno %d)",
			r->size, (uintptr_t)r->dev, r->key, EINVAL);
	return !r->size || (inside && r->host) ? 0 : EINVAL;
}

/*
 * The checked path of a copy at level 0. The copy may be announced there already.
 * The arguments are scalars: the usual copy must not build a struct for this call.
 */
static __attribute__((noinline, cold)) int
copy_checked(uint64_t key, void *dev, void *host, size_t size, bool to, uintptr_t frame)
{
	const struct request r = { .key = key, .dev = dev, .host = host, .size = size, .to = to };

	/* A handler may have copied at this level. */
	if (this_thread.frame[0] != frame)
		enter_level(0, key, frame);
	return finish_checked(&r, 0);
}

/* Who sees that the barrier has come sees each key that was cleared without it. */
static void look_for_barrier(void)
{
	if (!atomic_load_explicit(&this_thread.table->fenced, memory_order_acquire))
		this_thread.epoch &= ~MUST_FENCE;
}

/* A free level for a copy that may be inside another, or after one that was left. */
static __attribute__((noinline, cold)) int find_free_level(uintptr_t frame, unsigned int *level)
{
	drop_left_copies(frame);
	for (*level = 0; *level < GDR_HAZARD_LEVELS; ++*level)
		if (!busy(*level))
			return 0;
	gdr_log(GDR_LOG_ERROR, "gdr_copy: signal handlers have interrupted %u copies of this thread; let one of them end (errno %d)",
		GDR_HAZARD_LEVELS, EAGAIN);
	return EAGAIN;
}

/*
 * Takes this thread's record, if it has none yet, and a free level of the record. Its
 * errors are those of a copy through key.
 */
static inline __attribute__((always_inline)) int
take_level(uint64_t key, uintptr_t frame, unsigned int *taken)
{
	struct gdr_front *front = gdr_front_here();
	int rc = 0;

	*taken = 0;
	if (__builtin_expect(!front, 0))
		return refuse(key);
	if (__builtin_expect(!record_is_ours(), 0))
		rc = gdr_front_inherited(key) ? refuse(key) : take_record(front);
	else if (__builtin_expect(this_thread.epoch & MUST_FENCE, 0))
		look_for_barrier();
	if (!rc && __builtin_expect(busy(0) || busy(1) || busy(2), 0))
		rc = find_free_level(frame, taken);
	return rc;
}

static inline __attribute__((always_inline)) void
announce_at(unsigned int level, uint64_t key, uintptr_t frame)
{
	enter_level(level, key, frame);
	if (this_thread.epoch & MUST_FENCE)
		atomic_thread_fence(memory_order_seq_cst);
}

/*
 * The way of a thread's first copy, of a copy inside another, and of one that must fence.
 */
static __attribute__((noinline, cold)) int
copy_at_free_level(uint64_t key, void *dev, void *host, size_t size, bool to, uintptr_t frame)
{
	const struct request r = { .key = key, .dev = dev, .host = host, .size = size, .to = to };
	unsigned int level;
	int rc = take_level(key, frame, &level);

	if (rc)
		return rc;
	announce_at(level, key, frame);
	return finish_checked(&r, level);
}

/* A copy at level 0 that the GPU's copy engine or other threads may help with. */
static __attribute__((noinline)) void
copy_long(uint64_t key, void *dev, void *host, size_t size, bool to)
{
	const struct gdr_long copy = {
		.front = this_thread.front, .owner = this_thread.busy, .impl = this_thread.impl,
		.key = key, .off = (uintptr_t)dev - slot_of(key)->va, .dev = dev, .host = host,
		.size = size, .to = to,
	};

	gdr_long_copy(&copy);
}

static inline bool is_long(size_t size, bool to)
{
	size_t least = atomic_load_explicit(&copy_least_long[to], memory_order_relaxed);

	return __builtin_expect(size >= least, 0);
}

/*
 * Whether the next copy can be announced at level 0 at once. If so, frame[0] is set. It
 * mostly has that value already, from the last copy.
 */
static inline bool take_level_0(uintptr_t frame)
{
	if (__builtin_expect(this_thread.front->epoch != this_thread.epoch, 0))
		return false;
	if (__builtin_expect(busy(0) != 0, 0))
		return false;
	if (__builtin_expect(this_thread.frame[0] == frame, 1))
		return true;
	this_thread.frame[0] = frame;
	atomic_signal_fence(memory_order_seq_cst);
	/* A handler that ran in between may have left a copy here. */
	return busy(0) == 0;
}

/* Whether level 0 is still this copy's, after its announcement. */
static inline bool has_level_0(uintptr_t frame)
{
	return this_thread.frame[0] == frame;
}

/* A write of more than a line, in the usual case. */
static __attribute__((noinline)) int
write_lines(uint64_t key, void *dev, void *host, size_t size)
{
	if (is_long(size, true))
		copy_long(key, dev, host, size, true);
	else
		this_thread.impl->to(dev, host, size);
	copy_fence_store();
	leave_level(0);
	return 0;
}

static __attribute__((noinline)) int
read_long(void *host, const void *dev, size_t size)
{
	copy_fence_read_begin();
	copy_long(busy(0), (void *)dev, host, size, false);
	copy_fence_read_end();
	leave_level(0);
	return 0;
}

static inline int read_lines(void *host, const void *dev, size_t size)
{
	if (is_long(size, false))
		return read_long(host, dev, size);
	copy_fence_read_begin();
	this_thread.impl->from(host, dev, size);
	copy_fence_read_end();
	leave_level(0);
	return 0;
}

/* The caller's stack address. The asm makes the compiler compute it only once. */
static inline __attribute__((always_inline)) uintptr_t frame_here(void)
{
	uintptr_t frame = (uintptr_t)__builtin_dwarf_cfa();

	__asm__("" : "+r"(frame));
	return frame;
}

/*
 * Besides the data and the return address, this function stores two values: busy, and
 * busy again. So it saves nothing on the stack, and its last call is a jump.
 */
int gdr_copy_to_mapping(gdr_mh_t handle, void *map_d_ptr, const void *h_ptr, size_t size)
{
	uintptr_t frame = frame_here();

	if (__builtin_expect(!take_level_0(frame), 0))
		return copy_at_free_level(handle.h, map_d_ptr, (void *)h_ptr, size, true, frame);
	/* No fence is needed here: membarrier(2) in handle.Retract stands for it. */
	announce(0, handle.h);
	if (__builtin_expect(!is_usual(handle.h, map_d_ptr, h_ptr, size) || mixed() ||
			     !has_level_0(frame), 0))
		return copy_checked(handle.h, map_d_ptr, (void *)h_ptr, size, true, frame);
	if (__builtin_expect(size <= COPY_LINE, 1))
		return this_thread.impl->write[size](this_thread.busy, map_d_ptr, h_ptr);
	return write_lines(handle.h, map_d_ptr, (void *)h_ptr, size);
}

int gdr_copy_from_mapping(gdr_mh_t handle, void *h_ptr, const void *map_d_ptr, size_t size)
{
	uintptr_t frame = frame_here();

	if (__builtin_expect(!take_level_0(frame), 0))
		return copy_at_free_level(handle.h, (void *)map_d_ptr, h_ptr, size, false, frame);
	announce(0, handle.h);
	if (__builtin_expect(!is_usual(handle.h, map_d_ptr, h_ptr, size) ||
			     !has_level_0(frame), 0))
		return copy_checked(handle.h, (void *)map_d_ptr, h_ptr, size, false, frame);
	if (__builtin_expect(size <= COPY_LINE, 1))
		return this_thread.impl->read(h_ptr, map_d_ptr, size, this_thread.busy);
	return read_lines(h_ptr, map_d_ptr, size);
}

/* Copies of many pieces. */

/* What is known of the pieces once all were checked. */
struct pieces {
	const gdr_piece_t *at;
	size_t count;
	size_t longest;
	bool plain;	/* all are of write-combined memory */
	bool alone;	/* no thread and no GPU may help */
	unsigned int handles;	/* that they have; at most one more than fit into names */
	uint64_t names[GDR_HAZARD_NAMES];
};

static inline struct request request_of(const gdr_piece_t *piece, bool to)
{
	return (struct request){
		.key = piece->handle.h, .dev = piece->map_d_ptr, .host = piece->h_ptr,
		.size = piece->size, .to = to,
	};
}

/* Moves one piece of any type and size, also 0. */
static void move_piece(const struct pieces *p, const gdr_piece_t *piece, bool to)
{
	const struct request r = request_of(piece, to);
	uint32_t type;

	if (!r.size)
		return;
	type = slot_of(r.key)->type;
	if (!p->alone && type == GDR_MAPPING_TYPE_WC && is_long(r.size, to))
		copy_long(r.key, r.dev, r.host, r.size, to);
	else
		move_bytes(&r, type);
}

static inline __attribute__((always_inline)) void put_all(const struct pieces *p, const bool direct)
{
	copy_span *to = this_thread.impl->to;

	for (const gdr_piece_t *piece = p->at, *end = piece + p->count; piece < end; piece++)
		if (piece->size &&
		    !(direct && copy_put_direct(piece->map_d_ptr, piece->h_ptr, piece->size)))
			to(piece->map_d_ptr, piece->h_ptr, piece->size);
}

static void move_all_to(struct pieces *p)
{
	bool fully = mixed();

	p->alone |= fully;
	if (!p->plain || (!p->alone && is_long(p->longest, true)))
		for (size_t i = 0; i < p->count; i++)
			move_piece(p, &p->at[i], true);
	else if (this_thread.front->direct)
		put_all(p, true);
	else
		put_all(p, false);
	end_write(fully);
}

/*
 * How many lines are read at once: as many as a core has in flight. What is asked for of
 * each line is copied out of them.
 */
#define GATHER 16u
struct gather {
	_Alignas(COPY_LINE) uint8_t lines[GATHER][COPY_LINE];
	const void *devs[GATHER];
	struct {
		void *host;
		size_t off, n;
	} parts[GATHER];
	size_t used;
};

static inline void keep_part(void *host, const uint8_t *line, size_t n)
{
	/* Known sizes need no call. */
	switch (n) {
	case 4: memcpy(host, line, 4); break;
	case 8: memcpy(host, line, 8); break;
	case COPY_LINE: memcpy(host, line, COPY_LINE); break;
	default: memcpy(host, line, n); break;
	}
}

static void gather_lines(struct gather *g)
{
	if (g->used)
		this_thread.impl->gather(g->lines, g->devs, g->used);
	for (size_t i = 0; i < g->used; i++)
		keep_part(g->parts[i].host, g->lines[i] + g->parts[i].off, g->parts[i].n);
	g->used = 0;
}

static void add_lines(struct gather *g, const gdr_piece_t *piece)
{
	const uint8_t *dev = piece->map_d_ptr;
	uint8_t *host = piece->h_ptr;

	for (size_t left = piece->size, n; left; left -= n, dev += n, host += n) {
		size_t off = (uintptr_t)dev % COPY_LINE;

		n = left < COPY_LINE - off ? left : COPY_LINE - off;
		g->devs[g->used] = dev - off;
		g->parts[g->used].host = host;
		g->parts[g->used].off = off;
		g->parts[g->used].n = n;
		if (++g->used == GATHER)
			gather_lines(g);
	}
}

/*
 * A piece of at least this size is read by itself. It does not wait for other pieces'
 * lines.
 */
#define GATHER_MAX (4 * COPY_LINE)

static void move_all_from(struct pieces *p)
{
	bool gathers = this_thread.impl->gather && p->plain;
	struct gather g;

	g.used = 0;
	copy_fence_read_begin();
	for (size_t i = 0; i < p->count; i++)
		if (gathers && p->at[i].size < GATHER_MAX)
			add_lines(&g, &p->at[i]);
		else
			move_piece(p, &p->at[i], false);
	gather_lines(&g);
	copy_fence_read_end();
}

static void add_name(struct pieces *p, uint64_t key)
{
	for (unsigned int i = 0; i < p->handles && i < GDR_HAZARD_NAMES; i++)
		if (p->names[i] == key)
			return;
	if (p->handles < GDR_HAZARD_NAMES)
		p->names[p->handles] = key;
	if (p->handles <= GDR_HAZARD_NAMES)
		p->handles++;
}

/* Says which handles the copy has, so that an unmap of another one does not wait for it. */
static inline void narrow(const struct pieces *p, uint64_t number)
{
	struct gdr_hazard *record = (struct gdr_hazard *)record_here();

	if (p->handles > GDR_HAZARD_NAMES)
		return;
	for (unsigned int i = 0; i < p->handles; i++)
		atomic_store_explicit(&record->names[i], p->names[i], memory_order_release);
	atomic_store_explicit(&this_thread.busy[0], number | p->handles, memory_order_release);
}

static inline bool lies_in(const gdr_piece_t *piece, const struct gdr_slot *slot)
{
	uint64_t off = (uintptr_t)piece->map_d_ptr - slot->va;
	size_t size = piece->size;

	return !size || (piece->h_ptr && size <= slot->len && off <= slot->len - size);
}

/*
 * The index of the first piece that cannot be copied, or the count. A key that was found
 * stays until the copy ends.
 */
static size_t find_bad(struct pieces *p)
{
	const gdr_piece_t *piece = p->at, *end = piece + p->count;
	const struct gdr_slot *slot = NULL;
	size_t longest = 0;
	uint64_t last = 0;
	bool plain = true;

	for (; piece < end; piece++) {
		if (piece->handle.h != last || !last) {
			last = piece->handle.h;
			if (unmapped(last))
				break;
			slot = slot_of(last);
			plain &= slot->type == GDR_MAPPING_TYPE_WC;
			add_name(p, last);
		}
		if (!lies_in(piece, slot))
			break;
		longest = longest < piece->size ? piece->size : longest;
	}
	p->plain = plain;
	p->longest = longest;
	return (size_t)(piece - p->at);
}

static int refuse_piece(const gdr_piece_t *piece, size_t i, bool mapped)
{
	if (!mapped)
		return refuse(piece->handle.h);
	gdr_log(GDR_LOG_ERROR, "gdr_copy: piece %zu, %zu bytes at %#lx, does not lie in the mapping of handle %#lx, or has no host address (errno %d)",
		i, piece->size, (uintptr_t)piece->map_d_ptr, piece->handle.h, EINVAL);
	return EINVAL;
}

static int copy_many(const gdr_piece_t *pieces, size_t count, bool to, uintptr_t frame)
{
	struct pieces p;
	unsigned int level;
	uint64_t number;
	bool mapped = true;
	size_t bad;
	int rc;

	if (!count)
		return 0;
	if (!pieces) {
		gdr_log(GDR_LOG_ERROR, "gdr_copy: the array of %zu pieces is NULL (errno %d)", count, EINVAL);
		return EINVAL;
	}
	rc = take_level(pieces[0].handle.h, frame, &level);
	if (__builtin_expect(rc, 0))
		return rc;
	number = ++this_thread.many << GDR_MANY_SHIFT;
	announce_at(level, number, frame);
	p.at = pieces;
	p.count = count;
	p.alone = level > 0;
	p.handles = 0;
	bad = find_bad(&p);
	if (bad < count) {
		mapped = !unmapped(pieces[bad].handle.h);
	} else {
		if (level == 0)
			narrow(&p, number);
		(to ? move_all_to : move_all_from)(&p);
	}
	leave_level(level);
	return bad < count ? refuse_piece(&pieces[bad], bad, mapped) : 0;
}

int gdr_copy_to_mapping_v(const gdr_piece_t *pieces, size_t count)
{
	return copy_many(pieces, count, true, (uintptr_t)__builtin_dwarf_cfa());
}

int gdr_copy_from_mapping_v(const gdr_piece_t *pieces, size_t count)
{
	return copy_many(pieces, count, false, (uintptr_t)__builtin_dwarf_cfa());
}
