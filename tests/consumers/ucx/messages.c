/* SPDX-License-Identifier: MIT */
/*
 * messages.c WAY - messages of GPU memory from one UCP worker to another of the same
 * process. UCX takes them out of the GPU's memory, and puts them there, by gdr_copy.
 * CUDA says whether the bytes are right.
 *
 *   fork    children are forked in between; UCX unpins all that it keeps before each fork
 *   free    the buffers are freed and allocated again in between; UCX hears of it by its
 *           hooks, else it would copy through the mapping of what was there before
 *   mapped  what UCX's hooks of mmap and munmap see of gdr_map and gdr_unmap
 */
#include <stdint.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <ucm/api/ucm.h>
#include <ucp/api/ucp.h>

#include "../load.h"
#include "tap.h"

enum { ROUNDS = 300, FORKS = 30, TAG = 7, LARGEST = 1 << 20 };

static struct cuda_dl cu;
static struct tap tap;

static struct {
	ucp_context_h context;
	ucp_worker_h from, to;
	ucp_ep_h ep;		/* from's, to to */
	cu_ptr source, target;
	unsigned char bytes[LARGEST], got[LARGEST];
} w;

/* Ends the program: without it nothing can be tested. */
static void must(ucs_status_t status, const char *what)
{
	if (status != UCS_OK) {
		printf("# %s: %s\n", what, ucs_status_string(status));
		exit(1);
	}
}

static ucp_worker_h make_worker(void)
{
	ucp_worker_params_t params = {
		.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
		.thread_mode = UCS_THREAD_MODE_SINGLE,
	};
	ucp_worker_h worker;

	must(ucp_worker_create(w.context, &params, &worker), "ucp_worker_create");
	return worker;
}

static void connect_workers(void)
{
	ucp_params_t params = {
		.field_mask = UCP_PARAM_FIELD_FEATURES,
		.features = UCP_FEATURE_TAG,
	};
	ucp_ep_params_t ep = { .field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS };
	ucp_config_t *config;
	ucp_address_t *address;
	size_t length;

	must(ucp_config_read(NULL, NULL, &config), "ucp_config_read");
	must(ucp_init(&params, config, &w.context), "ucp_init");
	ucp_config_release(config);
	w.from = make_worker();
	w.to = make_worker();
	must(ucp_worker_get_address(w.to, &address, &length), "ucp_worker_get_address");
	ep.address = address;
	must(ucp_ep_create(w.from, &ep, &w.ep), "ucp_ep_create");
	ucp_worker_release_address(w.to, address);
}

static void disconnect_workers(void)
{
	ucp_request_param_t flush = { .op_attr_mask = 0 };
	void *request = ucp_ep_close_nbx(w.ep, &flush);

	while (UCS_PTR_IS_PTR(request) &&
	       ucp_request_check_status(request) == UCS_INPROGRESS) {
		ucp_worker_progress(w.from);
		ucp_worker_progress(w.to);
	}
	if (UCS_PTR_IS_PTR(request))
		ucp_request_free(request);
	ucp_worker_destroy(w.from);
	ucp_worker_destroy(w.to);
	ucp_cleanup(w.context);
}

static ucs_status_t finish(void *request)
{
	ucs_status_t status;

	if (!UCS_PTR_IS_PTR(request))
		return UCS_PTR_STATUS(request);
	do {
		ucp_worker_progress(w.from);
		ucp_worker_progress(w.to);
		status = ucp_request_check_status(request);
	} while (status == UCS_INPROGRESS);
	ucp_request_free(request);
	return status;
}

/* One message; 0 if CUDA finds at the target what it put into the source. */
static int send_one(size_t size, unsigned int seed)
{
	ucp_request_param_t plain = { .op_attr_mask = 0 };
	void *sent, *received;
	size_t i;

	for (i = 0; i < size; i++)
		w.bytes[i] = (unsigned char)(i * 7 + seed);
	if (cu.to_gpu(w.source, w.bytes, size) || cu.set8(w.target, 0, size))
		return -1;
	received = ucp_tag_recv_nbx(w.to, (void *)(uintptr_t)w.target, size, TAG, ~0ull, &plain);
	sent = ucp_tag_send_nbx(w.ep, (void *)(uintptr_t)w.source, size, TAG, &plain);
	if (finish(sent) != UCS_OK || finish(received) != UCS_OK)
		return -1;
	if (cu.from_gpu(w.got, w.target, size))
		return -1;
	return memcmp(w.got, w.bytes, size) ? -1 : 0;
}

/* Of each size that UCX treats in another way. */
static int send_some(unsigned int round)
{
	static const size_t sizes[] = { 8, 200, 5000, 65536, LARGEST };

	return send_one(sizes[round % (sizeof(sizes) / sizeof(sizes[0]))], round);
}

/* By linkage: UCX's hook by relocation sees no call through a pointer of dlsym's. */
int cuMemAlloc_v2(cu_ptr *p, size_t size);
int cuMemFree_v2(cu_ptr p);

static int allocate(void)
{
	return cuMemAlloc_v2(&w.source, LARGEST) || cuMemAlloc_v2(&w.target, LARGEST) ? -1 : 0;
}

static int release(void)
{
	return cuMemFree_v2(w.source) || cuMemFree_v2(w.target) ? -1 : 0;
}

/* Half of the children end at once, half become another program. */
static int one_child(int exec)
{
	pid_t pid = fork();
	int status;

	if (!pid) {
		if (exec)
			execl("/bin/true", "true", (char *)NULL);
		_exit(exec);
	}
	return pid < 0 || waitpid(pid, &status, 0) != pid || status ? -1 : 0;
}

static void with_forks(void)
{
	unsigned int i, children = 0, right = 0;

	for (i = 0; i < ROUNDS; i++) {
		right += !send_some(i);
		if (i % (ROUNDS / FORKS) == 0)
			children += !one_child(i / (ROUNDS / FORKS) % 2);
	}
	tap_is(&tap, right, ROUNDS, "messages that are right, between forks,");
	tap_is(&tap, children, FORKS, "children that ended with status 0");
}

static void with_frees(void)
{
	unsigned int i, right = 0, again = 0, same = 0;

	for (i = 0; i < ROUNDS; i++) {
		cu_ptr before = w.source;

		right += !send_some(i);
		if (i % 10)
			continue;
		again += !release() && !allocate();
		same += w.source == before || w.target == before;
	}
	tap_is(&tap, right, ROUNDS, "messages that are right, between frees,");
	tap_is(&tap, again, ROUNDS / 10, "times that the memory was made anew");
	tap_ok(&tap, same, "at an address of before: %u times", same);
}

/* What the hooks told of the mapping at va. */
static struct {
	uintptr_t va;		/* 0: the next one that is mapped */
	size_t size;
	int mapped, unmapped;
} seen;

static void on_event(ucm_event_type_t type, ucm_event_t *event, void *arg)
{
	(void)arg;
	if (type == UCM_EVENT_VM_MAPPED && event->vm_mapped.size == seen.size) {
		seen.va = (uintptr_t)event->vm_mapped.address;
		seen.mapped++;
	}
	if (type == UCM_EVENT_VM_UNMAPPED && seen.mapped && event->vm_unmapped.size == seen.size &&
	    (uintptr_t)event->vm_unmapped.address == seen.va)
		seen.unmapped++;
}

static void what_hooks_see(void)
{
	void *va = NULL;
	struct consumer_gdr gdr;
	gdr_mh_t mh;
	gdr_t g;

	consumer_functions(consumer_load(), &gdr);
	must(ucm_set_event_handler(UCM_EVENT_VM_MAPPED | UCM_EVENT_VM_UNMAPPED, 0, on_event, NULL),
	     "ucm_set_event_handler");
	g = gdr.open();
	if (!tap_ok(&tap, g && !gdr.pin(g, w.source, LARGEST, 0, 0, &mh), "gdr_open and gdr_pin_buffer"))
		return;
	seen.size = LARGEST;
	tap_is(&tap, gdr.map(g, mh, &va, LARGEST), 0, "gdr_map");
	tap_ok(&tap, seen.mapped && seen.va == (uintptr_t)va, "the hook of mmap saw it");
	tap_is(&tap, gdr.unmap(g, mh, va, LARGEST), 0, "gdr_unmap");
	tap_ok(&tap, seen.unmapped, "the hook of munmap saw it");
	tap_is(&tap, gdr.close(g), 0, "gdr_close");
	ucm_unset_event_handler(UCM_EVENT_VM_MAPPED | UCM_EVENT_VM_UNMAPPED, on_event, NULL);
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		void (*run)(void);
	} ways[] = {
		{ "fork", with_forks }, { "free", with_frees }, { "mapped", what_hooks_see },
	};
	size_t i;

	for (i = 0; i < sizeof(ways) / sizeof(ways[0]); i++)
		if (argc == 2 && !strcmp(argv[1], ways[i].name))
			break;
	if (i == sizeof(ways) / sizeof(ways[0])) {
		fprintf(stderr, "usage: %s fork|free|mapped\n", argv[0]);
		return 2;
	}
	consumer_cuda(&cu);
	connect_workers();
	if (tap_is(&tap, allocate(), 0, "cuMemAlloc")) {
		ways[i].run();
		tap_is(&tap, release(), 0, "cuMemFree");
	}
	disconnect_workers();
	return tap_done(&tap);
}
