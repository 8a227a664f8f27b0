/* SPDX-License-Identifier: MIT */
/*
 * mailbox.h - messages between the CPU and a running kernel. One header; the CPU's side
 * is here, the GPU's side is the order of steps below (pingpong.c has it as a kernel).
 *
 * A message is a word of 32 bits and up to 56 bytes of data. There are two rings of
 * MAILBOX_SLOTS slots. The CPU writes one in GPU memory, through the mapping; the GPU
 * writes one in memory of the host. So both sides poll memory that is near them.
 *
 * A slot's head has the number of its message in the high half and the word in the low
 * one. Messages are numbered from 1 in each direction; message n is in slot
 * (n - 1) % MAILBOX_SLOTS. The head is 8 aligned bytes: it is written at once.
 *
 * CPU to GPU, message n:
 *	1. The CPU waits until n - host->taken is at most MAILBOX_SLOTS: the slot is free.
 *	2. It copies the data, if there are any, to the slot. gdr_copy_to_mapping ends with
 *	   a store fence.
 *	3. It copies the head. So no one sees the head before the data.
 *	4. The GPU reads the head (ld.relaxed.sys) until it has number n. If there are
 *	   data it then fences (fence.acq_rel.sys), once.
 *	5. It reads the data.
 *	6. It stores n to host->taken with release (st.release.sys): its reads are over.
 *
 * GPU to CPU, message n:
 *	1. The GPU waits until n - gpu->taken is at most MAILBOX_SLOTS.
 *	2. It stores the data to the slot.
 *	3. It stores the head with release (st.release.sys).
 *	4. The CPU loads the head with acquire until it has number n.
 *	5. It reads the data.
 *	6. After a fence it copies n to gpu->taken, once for each half of the ring: its
 *	   reads are over.
 *
 * One thread of the CPU sends and one receives; they may be two. Numbers wrap at 2^32.
 */
#ifndef MAILBOX_H
#define MAILBOX_H

#include <errno.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <gdrapi.h>

#define MAILBOX_SLOTS 64u	/* a power of two */
#define MAILBOX_DATA 56u	/* bytes */

struct mailbox_slot {
	_Atomic uint64_t head;	/* number << 32 | word */
	unsigned char data[MAILBOX_DATA];
};

/* One side's memory: 64 slots of 64 bytes, and a line. */
struct mailbox_ring {
	struct mailbox_slot slot[MAILBOX_SLOTS];
	_Atomic uint32_t taken;	/* how many of the other ring's messages this ring's writer took */
	unsigned char pad[60];
};

_Static_assert(sizeof(struct mailbox_slot) == 64, "a slot is a line");
_Static_assert(sizeof(struct mailbox_ring) == 4160, "the kernels know the layout");

/*
 * The CPU's side. gpu is the ring in GPU memory, as the mapping shows it: the CPU
 * writes it, its taken too, and never reads it. host is the ring that the GPU writes.
 */
struct mailbox {
	gdr_mh_t mh;
	struct mailbox_ring *gpu;
	struct mailbox_ring *host;
	uint32_t sent;		/* messages to the GPU */
	uint32_t received;	/* messages from it */
};

static inline uint64_t mailbox_head(uint32_t number, uint32_t word)
{
	return (uint64_t)number << 32 | word;
}

/*
 * Empties both rings; no kernel may use them yet. gpu is inside of mh's mapping and
 * host in memory that the GPU reaches; both on 64 bytes. Returns 0 or what a copy
 * answered.
 */
static inline int mailbox_init(struct mailbox *m, gdr_mh_t mh, void *gpu, void *host)
{
	*m = (struct mailbox){ .mh = mh, .gpu = gpu, .host = host };
	memset(host, 0, sizeof(*m->host));
	return gdr_copy_to_mapping(mh, gpu, host, sizeof(*m->gpu));
}

/*
 * Sends a message. Returns 0; EAGAIN while the ring is full; EINVAL for more than
 * MAILBOX_DATA bytes; or what gdr_copy_to_mapping answered, and nothing was sent.
 */
static inline int mailbox_send(struct mailbox *m, uint32_t word, const void *data, size_t size)
{
	uint32_t number = m->sent + 1;
	struct mailbox_slot *slot = &m->gpu->slot[m->sent % MAILBOX_SLOTS];
	uint64_t head = mailbox_head(number, word);
	int err = 0;

	if (size > MAILBOX_DATA)
		return EINVAL;
	if (number - atomic_load_explicit(&m->host->taken, memory_order_acquire) > MAILBOX_SLOTS)
		return EAGAIN;
	if (size)
		err = gdr_copy_to_mapping(m->mh, slot->data, data, size);
	if (!err)
		err = gdr_copy_to_mapping(m->mh, &slot->head, &head, sizeof(head));
	if (!err)
		m->sent = number;
	return err;
}

/*
 * Takes a message; data may be NULL, and then size 0. Returns 0; EAGAIN while there is
 * none; EINVAL for more than MAILBOX_DATA bytes; or what gdr_copy_to_mapping answered:
 * the message is then still there.
 */
static inline int mailbox_receive(struct mailbox *m, uint32_t *word, void *data, size_t size)
{
	uint32_t number = m->received + 1;
	struct mailbox_slot *slot = &m->host->slot[m->received % MAILBOX_SLOTS];
	uint64_t head = atomic_load_explicit(&slot->head, memory_order_acquire);
	int err = 0;

	if (size > MAILBOX_DATA)
		return EINVAL;
	if (head >> 32 != number)
		return EAGAIN;
	*word = (uint32_t)head;
	if (size)
		memcpy(data, slot->data, size);
	atomic_thread_fence(memory_order_acq_rel);
	if (number % (MAILBOX_SLOTS / 2) == 0)
		err = gdr_copy_to_mapping(m->mh, &m->gpu->taken, &number, sizeof(number));
	if (!err)
		m->received = number;
	return err;
}

#endif
