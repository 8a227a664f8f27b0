// SPDX-License-Identifier: MIT
/* Self-tests of the simulated drivers: TAP output; a client's requests, one function each. */
#include "rm_selftest.h"
#include "tap.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static struct tap tap;

long tap_is_at(long got, long want, const char *what, const char *file, int line)
{
	if (!tap_ok(&tap, got == want, "%s", what))
		printf("# %s:%d: got %ld, want %ld\n", file, line, got, want);
	return got;
}

int tap_end(void)
{
	return tap_done(&tap);
}

int in_child(int (*fn)(void *), void *arg)
{
	int status;
	pid_t pid;

	fflush(stdout);
	pid = fork();
	if (pid == 0)
		_exit(fn(arg));
	if (pid < 0 || waitpid(pid, &status, 0) != pid)
		return -1000;
	return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

int ioctl_errno(int fd, unsigned long cmd, void *arg)
{
	return ioctl(fd, cmd, arg) ? errno : 0;
}

long rm_call(int fd, unsigned long cmd, void *arg, const uint32_t *status)
{
	return ioctl(fd, cmd, arg) ? -errno : (long)*status;
}

int ctl_open(void)
{
	return open(RM_CTL_DEVICE, O_RDWR | O_CLOEXEC);
}

int gpu_open(uint32_t minor)
{
	char path[32];

	snprintf(path, sizeof(path), RM_GPU_DEVICE "%u", minor);
	return open(path, O_RDWR | O_CLOEXEC);
}

uint32_t client_new(int ctl, uint32_t *client)
{
	struct rm_alloc a = { .class = RM_CLASS_CLIENT };
	long status = rm_call(ctl, RM_ALLOC, &a, &a.status);

	*client = a.object;
	return (uint32_t)status;
}

/* How many GPUs there are. */
int cards(int ctl, struct rm_card_info *cards, size_t n)
{
	size_t i;

	if (ioctl(ctl, RM_CARD_INFO(n), cards))
		return -errno;
	for (i = 0; i < n && cards[i].valid; i++)
		;
	return (int)i;
}

long rm_control_on(const struct rm *r, uint32_t object, uint32_t cmd, void *params, size_t size)
{
	struct rm_control a = { .client = r->client, .object = object, .cmd = cmd,
				.params = (uintptr_t)params, .params_size = (uint32_t)size };

	return rm_call(r->ctl, RM_CONTROL, &a, &a.status);
}

long rm_control(const struct rm *r, uint32_t cmd, void *params, size_t size)
{
	return rm_control_on(r, r->client, cmd, params, size);
}

static long new_object(const struct rm *r, uint32_t parent, uint32_t class, void *params,
		       size_t size, uint32_t *object)
{
	struct rm_alloc a = { .root = r->client, .parent = parent, .class = class,
			      .params = (uintptr_t)params, .params_size = (uint32_t)size };
	long status = rm_call(r->ctl, RM_ALLOC, &a, &a.status);

	*object = a.object;
	return status;
}

long rm_new_device(const struct rm *r, uint32_t instance, uint32_t *device)
{
	struct rm_device_params p = { .instance = instance, .client_share = r->client, .va_mode = 2 };

	return new_object(r, r->client, RM_CLASS_DEVICE, &p, sizeof(p), device);
}

long rm_new_memory(const struct rm *r, uint64_t size, uint32_t *memory)
{
	struct rm_sim_memory p = { .size = size };

	return new_object(r, r->device, RM_CLASS_MEMORY, &p, sizeof(p), memory);
}

long rm_dup(const struct rm *r, uint32_t client, uint32_t object, uint32_t *copy)
{
	struct rm_dup_object a = { .client = r->client, .parent = r->device,
				   .client_src = client, .object_src = object };
	long status = rm_call(r->ctl, RM_DUP_OBJECT, &a, &a.status);

	*copy = a.object;
	return status;
}

long rm_free(const struct rm *r, uint32_t object)
{
	struct rm_free a = { .root = r->client, .parent = r->device, .object = object };

	return rm_call(r->ctl, RM_FREE, &a, &a.status);
}

long rm_map_on(const struct rm *r, uint32_t memory, uint64_t offset, uint64_t length, int fd,
	       uint64_t *linear)
{
	struct rm_map_memory a = { .client = r->client, .device = r->device, .memory = memory,
				   .offset = offset, .length = length, .fd = fd };
	long status = rm_call(r->ctl, RM_MAP_MEMORY, &a, &a.status);

	*linear = a.linear;
	return status ? status : (long)(a.flags & RM_MAP_ANSWER_MASK) << 32;
}

long rm_unmap(const struct rm *r, uint32_t memory, uint64_t linear)
{
	struct rm_unmap_memory a = { .client = r->client, .device = r->device, .memory = memory,
				     .linear = linear };

	return rm_call(r->ctl, RM_UNMAP_MEMORY, &a, &a.status);
}

uint8_t *rm_map(const struct rm *r, uint32_t memory, uint64_t offset, uint64_t length,
		uint64_t *linear)
{
	int fd = gpu_open(r->minor);
	long status = rm_map_on(r, memory, offset, length, fd, linear);
	void *p = MAP_FAILED;

	if (!(uint32_t)status)
		p = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	return p == MAP_FAILED ? NULL : p;
}

struct rm_sim_stats rm_stats(const struct rm *r)
{
	struct rm_sim_stats s = { .gpu_id = r->gpu_id };

	if (ioctl(r->ctl, RM_SIM_STATS, &s) || s.status)
		abort();
	return s;
}

/* A test cannot go on without. */
static void must(bool ok, const char *what)
{
	if (ok)
		return;
	fprintf(stderr, "rm_selftest: %s: %s\n", what, strerror(errno));
	exit(EXIT_FAILURE);
}

/* Of the card at that index of RM_CARD_INFO. */
void rm_open(struct rm *r, int card)
{
	struct rm_id_info id = { .gpu_id = 0 };
	struct rm_card_info info[32];
	struct rm_register_fd reg;

	r->ctl = ctl_open();
	must(r->ctl >= 0, RM_CTL_DEVICE);
	must(!client_new(r->ctl, &r->client), "a client");
	must(cards(r->ctl, info, 32) > card, "RM_CARD_INFO");
	r->gpu_id = id.gpu_id = info[card].gpu_id;
	r->minor = info[card].minor;
	r->gpu_fd = gpu_open(r->minor);
	reg.ctl_fd = r->ctl;
	must(r->gpu_fd >= 0 && !ioctl(r->gpu_fd, RM_REGISTER_FD, &reg), "RM_REGISTER_FD");
	must(!rm_control(r, RM_CTRL_ID_INFO, &id, sizeof(id)), "RM_CTRL_ID_INFO");
	r->instance = id.instance;
	must(!rm_new_device(r, r->instance, &r->device), "a device");
}

void rm_close(struct rm *r)
{
	close(r->gpu_fd);
	close(r->ctl);
}
