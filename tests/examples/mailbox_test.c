// SPDX-License-Identifier: MIT
/*
 * mailbox_test - the rings of examples/mailbox. A thread has the GPU's part: it does the
 * steps of mailbox.h by loads and stores on a mapping of its own of the same memory.
 */
#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdlib.h>
#include <unistd.h>

#include "example.h"
#include "mailbox/mailbox.h"
#include "tap.h"

static struct tap tap;

static void check(bool ok, const char *name)
{
	tap_ok(&tap, ok, "%s", name);
}

/* The GPU's side, with the names of mailbox.h. */
struct peer {
	struct mailbox_ring *gpu;	/* its own mapping of what the CPU writes */
	struct mailbox_ring *host;
	uint32_t sent, received;
};

static bool peer_receive(struct peer *p, uint32_t *word, unsigned char *data)
{
	struct mailbox_slot *slot = &p->gpu->slot[p->received % MAILBOX_SLOTS];
	uint64_t head = atomic_load_explicit(&slot->head, memory_order_acquire);

	if (head >> 32 != p->received + 1)
		return false;
	*word = (uint32_t)head;
	memcpy(data, slot->data, MAILBOX_DATA);
	atomic_store_explicit(&p->host->taken, ++p->received, memory_order_release);
	return true;
}

static bool peer_send(struct peer *p, uint32_t word, const unsigned char *data)
{
	struct mailbox_slot *slot = &p->host->slot[p->sent % MAILBOX_SLOTS];
	uint32_t number = p->sent + 1;

	if (number - atomic_load_explicit(&p->gpu->taken, memory_order_acquire) > MAILBOX_SLOTS)
		return false;
	memcpy(slot->data, data, MAILBOX_DATA);
	atomic_store_explicit(&slot->head, mailbox_head(number, word), memory_order_release);
	p->sent = number;
	return true;
}

/* The memory of all, and two mappings of the part in the GPU. */
struct stage {
	gdr_t g;
	struct example_memory m;
	gdr_mh_t second;
	void *second_va;
	struct mailbox_ring host;
	struct mailbox box;
	struct peer peer;
};

/* Both sides as if so many messages had been sent already. */
static void set_at(struct stage *s, uint32_t n)
{
	gdr(mailbox_init(&s->box, s->m.mh, s->m.cpu, &s->host), "mailbox_init");
	s->peer = (struct peer){ .gpu = s->second_va, .host = &s->host };
	s->box.sent = s->box.received = s->peer.sent = s->peer.received = n;
	atomic_store(&s->host.taken, n);
	gdr(gdr_copy_to_mapping(s->m.mh, &s->box.gpu->taken, &n, sizeof(n)), "gdr_copy_to_mapping");
}

static void fill(unsigned char data[MAILBOX_DATA], uint32_t n)
{
	for (unsigned int i = 0; i < MAILBOX_DATA; i++)
		data[i] = (unsigned char)(n * 7 + i);
}

static bool is_filled(const unsigned char data[MAILBOX_DATA], uint32_t n)
{
	unsigned char want[MAILBOX_DATA];

	fill(want, n);
	return !memcmp(data, want, MAILBOX_DATA);
}

static void test_one(struct stage *s)
{
	unsigned char data[MAILBOX_DATA], got[MAILBOX_DATA] = "";
	uint32_t word = 0;

	set_at(s, MAILBOX_SLOTS / 2 - 1);	/* who receives the next one tells the other side */
	check(mailbox_receive(&s->box, &word, NULL, 0) == EAGAIN, "an empty ring has no message");
	check(mailbox_send(&s->box, 0, data, MAILBOX_DATA + 1) == EINVAL, "too much data is refused");
	check(mailbox_receive(&s->box, &word, got, MAILBOX_DATA + 1) == EINVAL, "both ways");
	fill(data, 5);
	s->box.mh = (gdr_mh_t){ 0 };
	check(mailbox_send(&s->box, 42, data, MAILBOX_DATA) == EINVAL && mailbox_send(&s->box, 42, NULL, 0) == EINVAL &&
	      !peer_receive(&s->peer, &word, got), "a copy that fails sends nothing");
	check(peer_send(&s->peer, 43, data) && mailbox_receive(&s->box, &word, NULL, 0) == EINVAL &&
	      s->box.received == MAILBOX_SLOTS / 2 - 1, "and takes nothing");
	s->box.mh = s->m.mh;
	check(!mailbox_send(&s->box, 42, data, MAILBOX_DATA) && peer_receive(&s->peer, &word, got) && word == 42 &&
	      is_filled(got, 5), "the next one sends");
	check(!mailbox_receive(&s->box, &word, got, MAILBOX_DATA) && word == 43 && is_filled(got, 5) &&
	      atomic_load(&s->peer.gpu->taken) == MAILBOX_SLOTS / 2, "and takes");
	check(!mailbox_send(&s->box, 0, NULL, 0) && peer_receive(&s->peer, &word, got) && !word, "a word alone, of 0");
}

/* Sends back what comes. */
static void *echo(void *arg)
{
	struct stage *s = arg;
	unsigned char data[MAILBOX_DATA];
	uint32_t word = 1;

	while (word) {
		while (!peer_receive(&s->peer, &word, data))
			sched_yield();
		while (!peer_send(&s->peer, word, data))
			sched_yield();
	}
	return NULL;
}

static void test_stream(struct stage *s)
{
	enum { COUNT = 200000 };
	unsigned char data[MAILBOX_DATA], got[MAILBOX_DATA];
	uint32_t sent = 0, received = 0, word, wrong = 0;
	pthread_t t;

	set_at(s, UINT32_MAX - COUNT / 2);	/* the numbers wrap on the way */
	gdr(pthread_create(&t, NULL, echo, s), "pthread_create");
	while (received < COUNT) {
		int err = EAGAIN;

		if (sent < COUNT) {
			fill(data, sent);
			/* The last word is 0 and ends the echo. */
			err = mailbox_send(&s->box, COUNT - 1 - sent, data, MAILBOX_DATA);
			sent += !err;
		}
		if (!mailbox_receive(&s->box, &word, got, MAILBOX_DATA)) {
			wrong += word != COUNT - 1 - received || !is_filled(got, received);
			received++;
		} else if (err) {
			sched_yield();
		}
	}
	pthread_join(t, NULL);
	check(!wrong, "200000 messages there and back, in order and whole");
}

int main(void)
{
	static struct stage s;

	alarm(120);	/* a message that is lost is waited for */
	example_context();
	s.g = example_open();
	example_map(s.g, &s.m, GPU_PAGE_SIZE);
	gdr(gdr_pin_buffer(s.g, s.m.dev, s.m.size, 0, 0, &s.second), "gdr_pin_buffer");
	gdr(gdr_map(s.g, s.second, &s.second_va, s.m.size), "gdr_map");

	test_one(&s);
	test_stream(&s);
	gdr(gdr_copy_to_mapping(s.m.mh, s.m.cpu, "", 1), "gdr_copy_to_mapping");
	example_unmap(s.g, &s.m);
	check(mailbox_send(&s.box, 1, NULL, 0) == EINVAL, "after the unmap a send is an errno");
	gdr(gdr_close(s.g), "gdr_close");
	return tap_done(&tap);
}
