// SPDX-License-Identifier: MIT
/*
 * data.c - gdr_copy_to_mapping and gdr_copy_from_mapping.
 *
 * They never enter Go, take no lock, and write no cache line that another
 * thread writes. slot.h states the protocol that keeps gdr_unmap from taking a
 * mapping away under a copy.
 */
#include "copy.h"
#include "copy_fence.h"
#include "front.h"

#include <errno.h>
#include <signal.h>
#include <string.h>

#include "../include/gdrapi.h"

/*
 * This thread's hazard record. It belongs to the table of one epoch: after a
 * fork the record of the parent's table is no longer there to be touched.
 */
static __thread struct {
	struct gdr_hazard *hazard;
	uint64_t epoch;
} mine __attribute__((tls_model("initial-exec")));

/* Its destructor gives a thread's record back. */
static pthread_key_t exit_key;
static bool have_exit_key;

static bool record_is_ours(void)
{
	struct gdr_front *front = atomic_load_explicit(&gdr_front_page, memory_order_relaxed);

	return mine.hazard && front && front->epoch == mine.epoch;
}

static void give_back(void *unused)
{
	(void)unused;
	if (record_is_ours()) {
		for (int i = 0; i < GDR_HAZARD_LEVELS; i++)
			atomic_store_explicit(&mine.hazard->busy[i], 0, memory_order_release);
		mine.hazard->level = 0;
		atomic_store_explicit(&mine.hazard->owner, 0, memory_order_release);
	}
	mine.hazard = NULL;
	mine.epoch = 0;
}

void gdr_data_init(void)
{
	if (!have_exit_key)
		have_exit_key = pthread_key_create(&exit_key, give_back) == 0;
}

/* Takes a free record of table, or returns NULL when all are taken. */
static struct gdr_hazard *claim(struct gdr_table *table)
{
	struct gdr_hazard *all = (struct gdr_hazard *)(uintptr_t)table->hazards;

	for (uint32_t i = 0; i < GDR_HAZARD_COUNT; i++) {
		uint32_t expect = 0, used;

		if (atomic_load_explicit(&all[i].owner, memory_order_relaxed) ||
		    !atomic_compare_exchange_strong(&all[i].owner, &expect, 1))
			continue;
		used = atomic_load(&table->hazards_used);
		while (used <= i &&
		       !atomic_compare_exchange_weak(&table->hazards_used, &used, i + 1))
			;
		return &all[i];
	}
	return NULL;
}

/* A thread's first copy in this process. Signals are held off: a handler that
 * copies must not find a record half taken.
 */
static int take_record(struct gdr_front *front)
{
	struct gdr_hazard *hazard;
	sigset_t all, old;

	if (!front || !atomic_load_explicit(&front->core, memory_order_acquire))
		return EINVAL;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	hazard = claim(front->table);
	if (hazard) {
		mine.hazard = hazard;
		mine.epoch = front->epoch;
		/* Without a key the record stays taken when the thread ends. */
		if (have_exit_key)
			pthread_setspecific(exit_key, hazard);
	}
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	if (!hazard)
		gdr_log(GDR_LOG_ERROR, "gdr_copy: %u threads are copying already", GDR_HAZARD_COUNT);
	return hazard ? 0 : EAGAIN;
}

static void drop_level(struct gdr_hazard *hazard)
{
	hazard->level--;
	atomic_store_explicit(&hazard->busy[hazard->level], 0, memory_order_release);
}

/*
 * Drops the levels of copies that are over because a signal handler (SIGBUS on
 * a revoked mapping, say) left them by siglongjmp: their frames lay at frame,
 * which lives, or below it. On an alternate stack addresses do not tell.
 */
static void drop_left_copies(struct gdr_hazard *hazard, uintptr_t frame)
{
	stack_t stack;

	if (sigaltstack(NULL, &stack) || (stack.ss_flags & SS_ONSTACK))
		return;
	while (hazard->level && hazard->frame[hazard->level - 1] <= frame)
		drop_level(hazard);
}

void gdr_data_forget(uint64_t key)
{
	struct gdr_hazard *hazard = mine.hazard;

	if (!record_is_ours())
		return;
	for (uint32_t i = 0; i < hazard->level; i++)
		if (!key || atomic_load_explicit(&hazard->busy[i], memory_order_relaxed) == key)
			atomic_store_explicit(&hazard->busy[i], 0, memory_order_release);
	while (hazard->level &&
	       !atomic_load_explicit(&hazard->busy[hazard->level - 1], memory_order_relaxed))
		hazard->level--;
}

/* One copy under way: what end_copy must undo, and how the mapping is mapped. */
struct copy {
	struct gdr_hazard *hazard;
	uint32_t level;
	uint32_t type;
	bool mixed;
	const struct copy_impl *impl;
};

/* Says why no copy goes through key, once it is clear that none does. */
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

static void end_copy(struct copy *c)
{
	atomic_store_explicit(&c->hazard->busy[c->level], 0, memory_order_release);
	atomic_signal_fence(memory_order_seq_cst);
	c->hazard->level = c->level;
}

/*
 * Announces a copy of n bytes through key at dev, and checks it. On success the
 * mapping stays until end_copy.
 */
static inline int begin_copy(struct copy *c, uint64_t key, uintptr_t dev, size_t n)
{
	struct gdr_front *front = atomic_load_explicit(&gdr_front_page, memory_order_acquire);
	struct gdr_table *table;
	struct gdr_slot *slot;
	int rc;

	if (__builtin_expect(!front || !mine.epoch || mine.epoch != front->epoch, 0)) {
		if (gdr_front_inherited(key))
			return refuse(key);
		rc = take_record(front);
		if (rc)
			return rc == EINVAL ? refuse(key) : rc;
	}
	table = front->table;
	c->hazard = mine.hazard;
	if (__builtin_expect(c->hazard->level, 0))
		drop_left_copies(c->hazard, (uintptr_t)__builtin_frame_address(0));
	c->level = c->hazard->level;
	if (__builtin_expect(c->level == GDR_HAZARD_LEVELS, 0))
		return EAGAIN;
	c->hazard->frame[c->level] = (uintptr_t)__builtin_frame_address(0);
	c->hazard->level = c->level + 1;
	atomic_signal_fence(memory_order_seq_cst);
	atomic_store_explicit(&c->hazard->busy[c->level], key, memory_order_relaxed);
	/* The other half of this fence is membarrier(2) in handle.Retract. */
	if (__builtin_expect(table->fenced, 0))
		atomic_thread_fence(memory_order_seq_cst);
	else
		atomic_signal_fence(memory_order_seq_cst);

	slot = (struct gdr_slot *)(uintptr_t)table->slots + (key & (GDR_SLOT_COUNT - 1));
	if (__builtin_expect(!key || atomic_load_explicit(&slot->key, memory_order_acquire) != key, 0)) {
		end_copy(c);
		return refuse(key);
	}
	if (__builtin_expect(n && (dev - slot->va > slot->len || n > slot->len - (dev - slot->va)), 0)) {
		end_copy(c);
		gdr_log(GDR_LOG_ERROR, "gdr_copy: %zu bytes at %#lx do not lie in the mapping of handle %#lx (errno %d)",
			n, dev, key, EINVAL);
		return EINVAL;
	}
	c->type = slot->type;
	c->mixed = atomic_load_explicit(&table->mixed, memory_order_relaxed);
	c->impl = front->impl;
	return 0;
}

int gdr_copy_to_mapping(gdr_mh_t handle, void *map_d_ptr, const void *h_ptr, size_t size)
{
	struct copy c;
	int rc;

	rc = begin_copy(&c, handle.h, (uintptr_t)map_d_ptr, size);
	if (rc)
		return rc;
	if (!h_ptr || !size) {
		end_copy(&c);
		return size ? EINVAL : 0;
	}
	if (c.type == GDR_MAPPING_TYPE_WC)
		c.impl->to(map_d_ptr, h_ptr, size);
	else if (c.type == GDR_MAPPING_TYPE_DEVICE)
		copy_portable.to(map_d_ptr, h_ptr, size);
	else
		memcpy(map_d_ptr, h_ptr, size);
	if (c.mixed)
		copy_fence_full();
	else
		copy_fence_store();
	end_copy(&c);
	return 0;
}

int gdr_copy_from_mapping(gdr_mh_t handle, void *h_ptr, const void *map_d_ptr, size_t size)
{
	struct copy c;
	int rc;

	rc = begin_copy(&c, handle.h, (uintptr_t)map_d_ptr, size);
	if (rc)
		return rc;
	if (!h_ptr || !size) {
		end_copy(&c);
		return size ? EINVAL : 0;
	}
	copy_fence_read_begin();
	if (c.type == GDR_MAPPING_TYPE_WC)
		c.impl->from(h_ptr, map_d_ptr, size);
	else if (c.type == GDR_MAPPING_TYPE_DEVICE)
		copy_portable.from(h_ptr, map_d_ptr, size);
	else
		memcpy(h_ptr, map_d_ptr, size);
	copy_fence_read_end();
	end_copy(&c);
	return 0;
}
