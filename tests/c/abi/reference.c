// SPDX-License-Identifier: MIT
/*
 * abi/reference.c - calls that NVIDIA's library answers in a way of its own. The first
 * part answers as it does; the second is docs/migrate.md's table of differences.
 */
#include <errno.h>
#include <stdbool.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "gdrapi.h"
#include "gdrapi_ext.h"
#include "tap.h"

enum { SIZE = 200000 };

static struct tap tap;
static gdr_t g;
static unsigned long addr;

static gdr_mh_t pin(void)
{
	gdr_mh_t mh = { 0 };

	tap_is(&tap, gdr_pin_buffer(g, addr, SIZE, 0, 0, &mh), 0, "a pin");
	return mh;
}

static void *map(gdr_mh_t mh)
{
	void *va = NULL;

	tap_is(&tap, gdr_map(g, mh, &va, SIZE), 0, "a map");
	return va;
}

static bool is_mapped(gdr_mh_t mh)
{
	gdr_info_t info = { 0 };

	return !gdr_get_info_v2(g, mh, &info) && info.mapped;
}

/* gdr_unmap takes these sizes, and nothing stays mapped. */
static void unmap_sizes(void)
{
	static const size_t sizes[] = { 1, 4096, 65536, SIZE - 1, SIZE, SIZE + 1, 262144 };
	gdr_mh_t mh = pin();

	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		void *va = map(mh);

		tap_is(&tap, gdr_unmap(g, mh, va, sizes[i]), 0, "gdr_unmap of another size than the mapping's");
		tap_ok(&tap, !is_mapped(mh), "all of it is unmapped");
	}
	tap_is(&tap, gdr_unpin_buffer(g, mh), 0, "unpin");
}

static void unknown_flags(void)
{
	static const uint32_t flags[] = { 2, 4, 0x10000, 0x80000000, 0xfffffffe };

	for (size_t i = 0; i < sizeof(flags) / sizeof(flags[0]); i++) {
		gdr_mh_t mh;

		tap_is(&tap, gdr_pin_buffer_v2(g, addr, SIZE, flags[i], &mh), 0, "unknown bits are ignored");
		tap_is(&tap, gdr_unpin_buffer(g, mh), 0, "unpin");
	}
}

static void attributes(void)
{
	int first, v = 77;

	tap_is(&tap, gdr_get_attribute(g, (gdr_attr_t)4, &v), EINVAL, "an unknown attribute");
	tap_is(&tap, v, 0, "its answer is 0");
	v = 77;
	tap_is(&tap, gdr_get_attribute(g, (gdr_attr_t)0, &v), EINVAL, "attribute 0");
	tap_is(&tap, v, 0, "its answer is 0");
	tap_is(&tap, gdr_get_attribute(g, GDR_ATTR_USING_DMA_BUF_MMAP, &first), 0, "USING_DMA_BUF_MMAP");
	gdr_unpin_buffer(g, pin());
	tap_is(&tap, gdr_get_attribute(g, GDR_ATTR_USING_DMA_BUF_MMAP, &v), 0, "and after a pin");
	tap_is(&tap, v, first, "its answer does not change once CUDA is initialised");
}

static void child_close(void)
{
	pid_t pid = fork();
	int status = -1;

	if (!pid)
		_exit(gdr_close(g));
	tap_ok(&tap, waitpid(pid, &status, 0) == pid && status == 0, "a forked child's gdr_close is 0");
}

/* Rows of docs/migrate.md: where NVIDIA's library gives no error, or ends the program. */
static void differences(void)
{
	gdr_mh_t a = pin(), b = pin();
	char *va = map(a), *other = map(b), bytes[128] = { 0 };

	tap_is(&tap, gdr_copy_to_mapping(b, va, bytes, 64), EINVAL, "a copy to another handle's mapping");
	tap_is(&tap, gdr_copy_to_mapping(a, bytes, bytes + 64, 64), EINVAL, "a copy to memory of the host");
	tap_is(&tap, gdr_copy_from_mapping(a, bytes, va + SIZE - 1 + 65536, 64), EINVAL, "a copy past the mapping");
	tap_is(&tap, gdr_unmap(g, a, va, 1 << 20), EINVAL, "gdr_unmap of more than the mapping");
	tap_ok(&tap, is_mapped(a), "which stays");
	tap_is(&tap, gdr_unpin_buffer(g, a), 0, "gdr_unpin_buffer of a mapped buffer unmaps it");
	tap_is(&tap, gdr_unpin_buffer(g, a), EINVAL, "a stale handle");
	tap_is(&tap, gdr_unmap(g, b, other + 65536, SIZE), 0, "gdr_unmap at another address: the handle counts");
	tap_is(&tap, gdr_unpin_buffer(g, b), 0, "unpin");
	tap_is(&tap, gdr_pin_buffer(g, addr, SIZE, 0, 0, NULL), EINVAL, "NULL");
	tap_is(&tap, gdr_close(NULL), EINVAL, "NULL");
}

int main(void)
{
	gdr_mem_t mem;

	g = gdr_open();
	tap_ok(&tap, g && !gdr_mem_alloc(g, 0, SIZE, 0, &mem) && !gdr_mem_get_device_ptr(g, mem, &addr, NULL),
	       "gdr_open and memory");
	if (!tap.failed) {
		unmap_sizes();
		unknown_flags();
		attributes();
		child_close();
		differences();
		tap_is(&tap, gdr_close(g), 0, "gdr_close");
		tap_is(&tap, gdr_close(g), EINVAL, "gdr_close once more");
	}
	return tap_done(&tap);
}
