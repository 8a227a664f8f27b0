/* SPDX-License-Identifier: MIT */
/*
 * signals.c - UCX's transport gdr_copy under a worker whose progress is made in the
 * handler of SIGALRM (UCS_ASYNC_MODE_SIGNAL). The handler puts and gets GPU memory
 * while the program does, and registers and deregisters memory, which pins and unpins.
 */
#include <stdint.h>
#include <string.h>

#include <ucs/async/async_fwd.h>
#include <ucs/time/time.h>
#include <uct/api/uct.h>

#include "../load.h"
#include "tap.h"

enum { ROUNDS = 5000, TICKS = 200, SIZE = 1 << 17, PART = 512 };

static struct cuda_dl cu;
static struct tap tap;

static struct {
	uct_component_h component;
	uct_md_h md;
	ucs_async_context_t *async;
	uct_worker_h worker;
	uct_iface_h iface;
	uct_ep_h ep;
	cu_ptr memory;
	uct_mem_h memh;
	uct_rkey_bundle_t key;
} u;

/* Ends the program: without it nothing can be tested. */
static void must(ucs_status_t status, const char *what)
{
	if (status != UCS_OK) {
		printf("# %s: %s\n", what, ucs_status_string(status));
		exit(1);
	}
}

static void open_component(void)
{
	uct_component_h *all;
	uct_md_config_t *config;
	unsigned int i, n;

	must(uct_query_components(&all, &n), "uct_query_components");
	for (i = 0; i < n && !u.component; i++) {
		uct_component_attr_t attr = { .field_mask = UCT_COMPONENT_ATTR_FIELD_NAME };

		must(uct_component_query(all[i], &attr), "uct_component_query");
		if (!strcmp(attr.name, "gdr_copy"))
			u.component = all[i];
	}
	uct_release_component_list(all);
	must(u.component ? UCS_OK : UCS_ERR_NO_DEVICE, "the component gdr_copy");
	must(uct_md_config_read(u.component, NULL, NULL, &config), "uct_md_config_read");
	must(uct_md_open(u.component, "gdr_copy", config, &u.md), "uct_md_open");
	uct_config_release(config);
}

static void open_iface(void)
{
	uct_iface_params_t params = {
		.field_mask = UCT_IFACE_PARAM_FIELD_OPEN_MODE | UCT_IFACE_PARAM_FIELD_DEVICE,
		.open_mode = UCT_IFACE_OPEN_MODE_DEVICE,
		.mode.device = { .tl_name = "gdr_copy", .dev_name = "cuda" },
	};
	uct_iface_config_t *config;

	must(ucs_async_context_create(UCS_ASYNC_MODE_SIGNAL, &u.async), "an async context");
	must(uct_worker_create(u.async, UCS_THREAD_MODE_SINGLE, &u.worker), "uct_worker_create");
	must(uct_md_iface_config_read(u.md, "gdr_copy", NULL, NULL, &config),
	     "uct_md_iface_config_read");
	must(uct_iface_open(u.md, u.worker, &params, config, &u.iface), "uct_iface_open");
	uct_config_release(config);
}

static void open_ep(void)
{
	char iface[256] = "", device[256] = "";
	uct_ep_params_t params = {
		.field_mask = UCT_EP_PARAM_FIELD_IFACE | UCT_EP_PARAM_FIELD_DEV_ADDR |
			      UCT_EP_PARAM_FIELD_IFACE_ADDR,
		.iface = u.iface, .dev_addr = (void *)device, .iface_addr = (void *)iface,
	};
	uct_iface_attr_t attr;

	must(uct_iface_query(u.iface, &attr), "uct_iface_query");
	if (attr.iface_addr_len > sizeof(iface) || attr.device_addr_len > sizeof(device))
		must(UCS_ERR_BUFFER_TOO_SMALL, "an address of the interface");
	must(uct_iface_get_address(u.iface, (void *)iface), "uct_iface_get_address");
	must(uct_iface_get_device_address(u.iface, (void *)device),
	     "uct_iface_get_device_address");
	must(uct_ep_create(&params, &u.ep), "uct_ep_create");
}

static ucs_status_t enter_memory(uct_mem_h *memh, uct_rkey_bundle_t *key)
{
	char packed[256];
	uct_md_attr_t attr;
	ucs_status_t status;

	must(uct_md_query(u.md, &attr), "uct_md_query");
	if (attr.rkey_packed_size > sizeof(packed))
		return UCS_ERR_BUFFER_TOO_SMALL;
	status = uct_md_mem_reg(u.md, (void *)(uintptr_t)u.memory, SIZE, UCT_MD_MEM_ACCESS_ALL,
				memh);
	if (status == UCS_OK)
		status = uct_md_mkey_pack(u.md, *memh, packed);
	if (status == UCS_OK)
		status = uct_rkey_unpack(u.component, packed, key);
	return status;
}

static void leave_memory(uct_mem_h memh, const uct_rkey_bundle_t *key)
{
	uct_rkey_release(u.component, key);
	uct_md_mem_dereg(u.md, memh);
}

/* A part of the memory there and back. */
static int round_trip(uint64_t offset, unsigned int seed, const uct_rkey_bundle_t *key)
{
	unsigned char bytes[PART], got[PART];

	memset(bytes, (int)(seed % 251), sizeof(bytes));
	if (uct_ep_put_short(u.ep, bytes, sizeof(bytes), u.memory + offset, key->rkey) != UCS_OK ||
	    uct_ep_get_short(u.ep, got, sizeof(got), u.memory + offset, key->rkey) != UCS_OK)
		return -1;
	return memcmp(bytes, got, sizeof(bytes)) ? -1 : 0;
}

static struct {
	volatile unsigned int n, right;
} ticks;

/* In the handler: the second half of the memory is its own. */
static void on_tick(int id, ucs_event_set_types_t events, void *arg)
{
	(void)id;
	(void)events;
	(void)arg;
	ticks.right += !round_trip(SIZE / 2, ticks.n, &u.key);
	ticks.n++;
}

static void exchange(void)
{
	unsigned int i, right = 0;

	for (i = 0; i < ROUNDS || ticks.n < TICKS; i++)
		right += !round_trip(i % 100 * PART, i, &u.key);
	tap_is(&tap, right, i, "round trips beside the handler");
}

static void registrations(void)
{
	unsigned int i, right = 0, until = ticks.n + TICKS;

	for (i = 0; i < ROUNDS / 50 || ticks.n < until; i++) {
		uct_rkey_bundle_t key;
		uct_mem_h memh;

		if (enter_memory(&memh, &key) != UCS_OK)
			break;
		right += !round_trip(i % 100 * PART, i, &key);
		leave_memory(memh, &key);
	}
	tap_is(&tap, right, i, "registrations beside the handler");
}

int main(void)
{
	int timer;

	consumer_cuda(&cu);
	open_component();
	open_iface();
	open_ep();
	tap_is(&tap, cu.mem_alloc(&u.memory, SIZE), 0, "cuMemAlloc");
	must(enter_memory(&u.memh, &u.key), "registration");
	must(ucs_async_add_timer(UCS_ASYNC_MODE_SIGNAL, ucs_time_from_usec(1000), on_tick, NULL,
				 u.async, &timer), "ucs_async_add_timer");
	exchange();
	registrations();
	must(ucs_async_remove_handler(timer, 1), "ucs_async_remove_handler");
	tap_is(&tap, ticks.right, ticks.n, "round trips in the handler");
	leave_memory(u.memh, &u.key);
	tap_is(&tap, cu.mem_free(u.memory), 0, "cuMemFree");
	uct_ep_destroy(u.ep);
	uct_iface_close(u.iface);
	uct_worker_destroy(u.worker);
	ucs_async_context_destroy(u.async);
	uct_md_close(u.md);
	return tap_done(&tap);
}
