/* SPDX-License-Identifier: MIT */
/* What the self-tests of the simulated drivers share: TAP output, a client and its requests. */
#ifndef RM_SELFTEST_H
#define RM_SELFTEST_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "rm_uapi.h"

/* One TAP line. The test goes on with the value of got. */
long tap_is_at(long got, long want, const char *what, const char *file, int line);
int tap_end(void);

#define IS_OF(got, want, what) tap_is_at((long)(got), (long)(want), what, __FILE__, __LINE__)
#define IS(got, want) IS_OF(got, want, #got " is " #want)
#define TRUE(cond) IS(!!(cond), 1)

/* Run fn in a child; its status, or -signal. */
int in_child(int (*fn)(void *), void *arg);

#define MIB (1ull << 20)
#define PAGE ((size_t)4096)

/* A client with one device. */
struct rm {
	int ctl, gpu_fd;
	uint32_t client, device;
	uint32_t gpu_id, minor, instance;
};

int ctl_open(void);
int gpu_open(uint32_t minor);
uint32_t client_new(int ctl, uint32_t *client);
void rm_open(struct rm *r, int card);
void rm_close(struct rm *r);
int cards(int ctl, struct rm_card_info *cards, size_t n);

/* The answer of rm_map_on where a mapping was made. */
#define ANSWER(flags) ((long)(flags) << 32)

int ioctl_errno(int fd, unsigned long cmd, void *arg);

/* The NV_STATUS of each, or minus the errno of the ioctl. */
long rm_call(int fd, unsigned long cmd, void *arg, const uint32_t *status);
long rm_control_on(const struct rm *r, uint32_t object, uint32_t cmd, void *params, size_t size);
long rm_control(const struct rm *r, uint32_t cmd, void *params, size_t size);
long rm_new_device(const struct rm *r, uint32_t instance, uint32_t *device);
long rm_new_memory(const struct rm *r, uint64_t size, uint32_t *memory);
long rm_dup(const struct rm *r, uint32_t client, uint32_t object, uint32_t *copy);
long rm_free(const struct rm *r, uint32_t object);
long rm_map_on(const struct rm *r, uint32_t memory, uint64_t offset, uint64_t length, int fd,
	       uint64_t *linear);
long rm_unmap(const struct rm *r, uint32_t memory, uint64_t linear);

/* A mapping of memory and its name; NULL for none. */
uint8_t *rm_map(const struct rm *r, uint32_t memory, uint64_t offset, uint64_t length,
		uint64_t *linear);
struct rm_sim_stats rm_stats(const struct rm *r);

#endif
