// SPDX-License-Identifier: MIT
/*
 * Self-tests of the simulated driver, run by rm_sim: every request, each refusal, how
 * long things live. TAP output.
 *
 * Without an argument no NVRM_SIM_* variable may be set. "options" needs the variables
 * that the function of that name lists.
 */
#include "rm_selftest.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

#define ANSWER(flags) ((long)(flags) << 32)

static void test_files(void)
{
	struct statx sx;
	struct stat st;
	int a, b;

	IS(access(RM_CTL_DEVICE, R_OK | W_OK), 0);
	IS(access("/dev/nvidia2", F_OK), 0);
	IS(access("/dev/nvidia7", F_OK), -1);
	IS(errno, ENOENT);
	IS(stat(RM_CTL_DEVICE, &st), 0);
	TRUE(S_ISCHR(st.st_mode) && st.st_rdev == makedev(RM_MAJOR, RM_CTL_MINOR));
	IS(stat("/dev/nvidia9", &st), -1);
	IS(statx(AT_FDCWD, "/dev/nvidia0", 0, STATX_BASIC_STATS, &sx), 0);
	TRUE(sx.stx_rdev_major == RM_MAJOR && sx.stx_rdev_minor == 0);
	IS(gpu_open(7), -1);
	IS(errno, ENOENT);
	a = ctl_open();
	b = open(RM_CTL_DEVICE, O_RDWR);
	TRUE(a >= 0 && b >= 0);
	IS(fcntl(a, F_GETFD), FD_CLOEXEC);
	IS(fcntl(b, F_GETFD), 0);
	/* A mapping without a request. */
	TRUE(mmap(NULL, PAGE, PROT_READ, MAP_SHARED, b, 0) == MAP_FAILED);
	close(a);
	close(b);
	a = gpu_open(0);
	TRUE(mmap(NULL, PAGE, PROT_READ, MAP_SHARED, a, 0) == MAP_FAILED);
	IS(errno, EINVAL);
	close(a);
}

/* Other files and their mappings are as without the driver. */
static void test_others(void)
{
	int fd = memfd_create("other", MFD_CLOEXEC), null = open("/dev/null", O_RDWR | O_CLOEXEC);
	char *p;

	TRUE(null >= 0);
	IS(ioctl(null, RM_ALLOC, &fd), -1);
	IS(errno, ENOTTY);
	IS(ftruncate(fd, (off_t)(2 * PAGE)), 0);
	IS(pwrite(fd, "x", 1, (off_t)PAGE), 1);
	p = mmap(NULL, PAGE, PROT_READ, MAP_SHARED, fd, (off_t)PAGE);
	TRUE(p != MAP_FAILED && *p == 'x');
	IS(munmap(p, PAGE), 0);
	IS(access("/dev/null", R_OK), 0);
	close(fd);
	close(null);
}

static int ioctl_errno(int fd, unsigned long cmd, void *arg)
{
	return ioctl(fd, cmd, arg) ? errno : 0;
}

/* The request has the size, and each request is for one kind of file. */
static void test_sizes(void)
{
	char arg[8192] = "";
	struct rm r;

	rm_open(&r, 0);
	IS(ioctl_errno(r.ctl, _IOC(3, 'F', 0x2b, 32), arg), EINVAL);
	IS(ioctl_errno(r.ctl, _IOC(3, 'F', 0x29, 12), arg), EINVAL);
	IS(ioctl_errno(r.ctl, _IOC(3, 'F', 0x2a, 40), arg), EINVAL);
	IS(ioctl_errno(r.ctl, _IOC(3, 'F', 0x34, 32), arg), EINVAL);
	IS(ioctl_errno(r.ctl, _IOC(3, 'F', 0x4e, 48), arg), EINVAL);
	IS(ioctl_errno(r.ctl, _IOC(3, 'F', 0x4f, 40), arg), EINVAL);
	IS(ioctl_errno(r.ctl, _IOC(3, 'F', 99, 16), arg), EINVAL);
	IS(ioctl_errno(r.ctl, RM_EXPORT_DMABUF, arg), EINVAL);
	IS(ioctl_errno(r.gpu_fd, RM_EXPORT_DMABUF_2600, arg), EINVAL);
	IS(ioctl_errno(r.gpu_fd, RM_ALLOC, arg), EINVAL);
	IS(ioctl_errno(r.gpu_fd, RM_MAP_MEMORY, arg), EINVAL);
	IS(ioctl_errno(r.ctl, RM_REGISTER_FD, arg), EINVAL);
	IS(ioctl_errno(r.ctl, RM_CARD_INFO(3), arg), EINVAL);
	IS(ioctl_errno(r.ctl, _IOC(3, 'F', RM_CARD_INFO_NR, 32 * 72 + 8), arg), EINVAL);
	IS(ioctl_errno(r.ctl, RM_CARD_INFO(4), arg), 0);
	IS(ioctl_errno(r.ctl, RM_FREE, NULL), EFAULT);
	rm_close(&r);
}

static void test_version(void)
{
	struct rm_version v = { .cmd = '2' };
	int ctl = ctl_open();

	IS(ioctl(ctl, RM_VERSION, &v), 0);
	IS(v.reply, 1);
	TRUE(strncmp(v.version, "580.", 4) == 0);
	v.cmd = 0;
	IS(ioctl(ctl, RM_VERSION, &v), 0);
	v.version[0]++;
	IS(ioctl_errno(ctl, RM_VERSION, &v), EINVAL);
	close(ctl);
}

static void test_cards(void)
{
	struct rm_card_info c[32];
	int ctl = ctl_open(), n = cards(ctl, c, 32), i;

	IS(n, 4);
	for (i = 0; i < n; i++)
		TRUE(c[i].pci_vendor == 0x10de && c[i].minor != (uint32_t)i && c[i].gpu_id != c[i].minor);
	/* Two GPUs differ in the domain alone, two in the slot alone. */
	TRUE(c[3].pci_bus == c[2].pci_bus && c[3].pci_domain != c[2].pci_domain);
	TRUE(c[1].pci_bus == c[0].pci_bus && c[1].pci_slot != c[0].pci_slot);
	close(ctl);
}

static void test_clients(void)
{
	struct rm_alloc a = { .class = RM_CLASS_CLIENT, .root = 1 };
	struct rm_free f = { .root = 0 };
	struct rm r, other;
	uint32_t object;

	rm_open(&r, 0);
	rm_open(&other, 0);
	TRUE(r.client != other.client);
	IS(ioctl(r.ctl, RM_ALLOC, &a), 0);
	IS(a.status, RM_INVALID_ARGUMENT);
	a = (struct rm_alloc){ .class = 0x1234, .root = r.client, .parent = r.client };
	IS(ioctl(r.ctl, RM_ALLOC, &a), 0);
	IS(a.status, RM_INVALID_CLASS);
	/* A client belongs to its file. */
	f.root = f.object = other.client;
	IS(ioctl(r.ctl, RM_FREE, &f), 0);
	IS(f.status, RM_INVALID_CLIENT);
	IS(rm_free(&r, 0xcafe), RM_NOT_FOUND);
	IS(rm_new_memory(&r, PAGE, &object), 0);
	IS(rm_free(&r, r.device), 0);
	IS(rm_free(&r, object), RM_NOT_FOUND);
	IS(rm_free(&r, r.client), 0);
	IS(rm_free(&r, r.client), RM_INVALID_CLIENT);
	rm_close(&other);
	rm_close(&r);
}

static void test_devices(void)
{
	struct rm_device_params p = { .va_mode = 2 };
	struct rm_alloc a = { .class = RM_CLASS_DEVICE, .params = (uintptr_t)&p };
	struct rm_register_fd reg;
	struct rm_card_info c[32];
	struct rm_id_info id = { .gpu_id = 12345 };
	uint32_t device;
	struct rm r;
	int fd;

	rm_open(&r, 0);
	IS(rm_control(&r, RM_CTRL_ID_INFO, &id, sizeof(id)), RM_INVALID_ARGUMENT);
	IS(rm_control(&r, RM_CTRL_ID_INFO, &id, sizeof(id) - 4), RM_INVALID_ARGUMENT);
	IS(rm_control(&r, 0x9999, &id, sizeof(id)), RM_NOT_SUPPORTED);
	p.instance = r.instance;
	a.root = r.client;
	a.parent = r.client;
	a.params_size = sizeof(p) - 4;
	IS(ioctl(r.ctl, RM_ALLOC, &a), 0);
	IS(a.status, RM_INVALID_STRUCT);
	a.params_size = sizeof(p);
	a.parent = r.device;
	IS(ioctl(r.ctl, RM_ALLOC, &a), 0);
	IS(a.status, RM_INVALID_PARENT);
	a.parent = r.client;
	a.object = r.device;
	IS(ioctl(r.ctl, RM_ALLOC, &a), 0);
	IS(a.status, RM_DUPLICATE_NAME);
	IS(rm_new_device(&r, 77, &device), RM_INVALID_DEVICE);
	/* A GPU that nobody has opened, and one without a registered file. */
	cards(r.ctl, c, 32);
	id.gpu_id = c[1].gpu_id;
	IS(rm_control(&r, RM_CTRL_ID_INFO, &id, sizeof(id)), RM_INVALID_ARGUMENT);
	fd = gpu_open(c[1].minor);
	IS(rm_control(&r, RM_CTRL_ID_INFO, &id, sizeof(id)), 0);
	TRUE(id.instance != r.instance);
	IS(id.flags, 0);
	IS(id.numa, -1);
	IS(rm_new_device(&r, id.instance, &device), RM_INVALID_DEVICE);
	reg.ctl_fd = fd;
	IS(ioctl_errno(fd, RM_REGISTER_FD, &reg), EINVAL);
	reg.ctl_fd = r.ctl;
	IS(ioctl(fd, RM_REGISTER_FD, &reg), 0);
	IS(ioctl_errno(fd, RM_REGISTER_FD, &reg), EINVAL);
	IS(rm_new_device(&r, id.instance, &device), 0);
	close(fd);
	rm_close(&r);
}

static void test_map(void)
{
	uint64_t lin, lin2;
	uint32_t mem, copy, elsewhere;
	struct rm r, other;
	uint8_t *p, *q;
	int fd, wrong;

	rm_open(&r, 0);
	rm_open(&other, 1);
	IS(rm_new_memory(&r, 100, &mem), RM_INVALID_ARGUMENT);
	IS(rm_new_memory(&r, 0, &mem), RM_INVALID_ARGUMENT);
	IS(rm_new_memory(&r, 1ull << 50, &mem), RM_NO_MEMORY);
	IS(rm_new_memory(&r, 16 * PAGE, &mem), 0);
	IS(rm_new_memory(&other, 16 * PAGE, &elsewhere), 0);
	fd = gpu_open(r.minor);
	wrong = gpu_open(other.minor);
	IS(rm_map_on(&r, mem, 0, 17 * PAGE, fd, &lin), RM_INVALID_LIMIT);
	IS(rm_map_on(&r, mem, 16 * PAGE, PAGE, fd, &lin), RM_INVALID_BASE);
	IS(rm_map_on(&r, mem, -PAGE, 2 * PAGE, fd, &lin), RM_INVALID_BASE);
	IS(rm_map_on(&r, mem, 0, 0, fd, &lin), RM_INVALID_ARGUMENT);
	IS(rm_map_on(&r, mem, 100, PAGE, fd, &lin), RM_INVALID_ARGUMENT);
	IS(rm_map_on(&r, mem, 0, PAGE, wrong, &lin), RM_INVALID_ARGUMENT);
	IS(rm_map_on(&r, mem, 0, PAGE, r.ctl, &lin), RM_INVALID_ARGUMENT);
	IS(rm_map_on(&r, mem, 0, PAGE, -1, &lin), RM_INVALID_ARGUMENT);
	IS(rm_map_on(&r, 0x77, 0, PAGE, fd, &lin), RM_NOT_FOUND);
	IS(rm_map_on(&r, r.device, 0, PAGE, fd, &lin), RM_INVALID_OBJECT);
	IS(rm_map_on(&r, mem, PAGE, 2 * PAGE, fd, &lin), ANSWER(RM_MAP_BAR1));
	IS(rm_map_on(&r, mem, 0, PAGE, fd, &lin2), RM_STATE_IN_USE);
	TRUE(mmap(NULL, 3 * PAGE, PROT_READ, MAP_SHARED, fd, 0) == MAP_FAILED);
	IS(errno, ENXIO);
	TRUE(mmap(NULL, PAGE, PROT_READ, MAP_SHARED, fd, (off_t)PAGE) == MAP_FAILED);
	IS(errno, EINVAL);
	p = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	TRUE(p != MAP_FAILED);
	close(fd);
	close(wrong);
	/* It is the same memory at another address, and not the other GPU's memory. */
	q = rm_map(&r, mem, 0, 16 * PAGE, &lin2);
	TRUE(q && lin2 != lin);
	p[5] = 7;
	IS(q[PAGE + 5], 7);
	IS(rm_stats(&r).bar_used, 18 * PAGE);
	IS(rm_stats(&r).mappings, 2);
	munmap(p, 2 * PAGE);
	munmap(q, 16 * PAGE);
	IS(rm_unmap(&r, mem, lin + 1), RM_NOT_FOUND);
	IS(rm_unmap(&r, mem, lin), 0);
	IS(rm_unmap(&r, mem, lin), RM_NOT_FOUND);
	/* A file that was prepared for a mapping that has ended. */
	fd = gpu_open(r.minor);
	IS(rm_map_on(&r, mem, 0, PAGE, fd, &lin), ANSWER(RM_MAP_BAR1));
	IS(rm_unmap(&r, mem, lin), 0);
	TRUE(mmap(NULL, PAGE, PROT_READ, MAP_SHARED, fd, 0) == MAP_FAILED);
	close(fd);
	IS(rm_unmap(&r, mem, lin2), 0);
	/* FREE comes first. Then the mapping reads zeros, and UNMAP finds nothing. */
	IS(rm_dup(&r, r.client, mem, &copy), 0);
	p = rm_map(&r, copy, PAGE, 2 * PAGE, &lin);
	q = rm_map(&r, mem, 0, 16 * PAGE, &lin2);
	TRUE(p && q && p[5] == 7);
	IS(rm_free(&r, copy), 0);
	IS(p[5], 0);
	p[5] = 8;
	IS(q[PAGE + 5], 7);
	IS(rm_unmap(&r, copy, lin), RM_NOT_FOUND);
	munmap(p, 2 * PAGE);
	munmap(q, 16 * PAGE);
	IS(rm_free(&r, mem), 0);
	IS(rm_unmap(&r, mem, lin2), RM_NOT_FOUND);
	/* All of a client's objects at once. */
	IS(rm_new_memory(&r, 16 * PAGE, &mem), 0);
	p = rm_map(&r, mem, 0, PAGE, &lin);
	q = rm_map(&r, mem, PAGE, PAGE, &lin2);
	p[0] = q[0] = 3;
	IS(rm_free(&r, r.client), 0);
	IS(p[0] + q[0], 0);
	munmap(p, PAGE);
	munmap(q, PAGE);
	IS(rm_stats(&r).bar_used, 0);
	IS(rm_stats(&r).used, 0);
	rm_close(&other);
	rm_close(&r);
}

struct shared {
	struct rm *rm;
	uint32_t memory;
	int fd;
};

static int child_requests(void *arg)
{
	const struct shared *s = arg;
	uint32_t copy;
	struct rm r;

	/* The child uses the parent's client, on its file. */
	if (rm_free(s->rm, s->memory) != RM_INVALID_CLIENT)
		return 1;
	/* The child has a client of its own, and the parent's memory. */
	rm_open(&r, 0);
	if (rm_dup(&r, s->rm->client, s->memory, &copy) != RM_NO_PERMISSION)
		return 2;
	rm_close(&r);
	return 0;
}

static int child_shared(void *arg)
{
	const struct shared *s = arg;
	struct rm_import_fd im = { .fd = s->fd, .type = RM_FD_OBJECT };
	uint64_t lin;
	uint8_t *p;
	struct rm r;

	rm_open(&r, 0);
	if (s->fd < 0 && rm_dup(&r, s->rm->client, s->memory, &im.object))
		return 1;
	im.device = im.parent = r.device;
	if (s->fd >= 0 && rm_control(&r, RM_CTRL_IMPORT_FD, &im, sizeof(im)))
		return 2;
	p = rm_map(&r, im.object, 0, PAGE, &lin);
	if (!p)
		return 3;
	return p[0]++;
}

static void test_dup(void)
{
	struct rm a, b, elsewhere;
	struct shared s = { .rm = &a, .fd = -1 };
	struct rm_share share = { .client = 0 };
	uint64_t lin;
	uint32_t mem, copy, again;
	uint8_t *p;

	rm_open(&a, 0);
	rm_open(&b, 0);
	rm_open(&elsewhere, 1);
	IS(rm_new_memory(&a, 4 * PAGE, &mem), 0);
	/* Handles are local to a client. */
	IS(rm_new_memory(&b, PAGE, &copy), 0);
	IS(copy, mem);
	IS(rm_free(&b, copy), 0);
	IS(rm_dup(&b, a.client, mem, &copy), 0);
	IS(rm_dup(&b, b.client, copy, &again), 0);
	IS(rm_free(&b, again), 0);
	IS(rm_dup(&b, 0x1234, mem, &again), RM_INVALID_CLIENT);
	IS(rm_dup(&b, a.client, 0x1234, &again), RM_NOT_FOUND);
	IS(rm_dup(&b, a.client, a.device, &again), RM_INVALID_OBJECT);
	IS(rm_dup(&elsewhere, a.client, mem, &again), RM_INVALID_PARENT);
	/* The memory lives as long as a duplicate of it. */
	p = rm_map(&b, copy, PAGE, PAGE, &lin);
	TRUE(p);
	p[1] = 9;
	IS(rm_free(&a, mem), 0);
	IS(rm_stats(&a).used, 4 * PAGE);
	munmap(p, PAGE);
	IS(rm_unmap(&b, copy, lin), 0);
	p = rm_map(&b, copy, 0, 4 * PAGE, &lin);
	TRUE(p && p[PAGE + 1] == 9);
	munmap(p, 4 * PAGE);
	IS(rm_unmap(&b, copy, lin), 0);
	IS(rm_free(&b, copy), 0);
	IS(rm_stats(&a).used, 0);
	/* Another process. */
	IS(rm_new_memory(&a, 4 * PAGE, &s.memory), 0);
	IS(in_child(child_requests, &s), 0);
	share.client = a.client;
	share.object = s.memory;
	IS(ioctl(a.ctl, RM_SHARE, &share), 0);
	IS(share.status, 0);
	IS(in_child(child_shared, &s), 0);
	p = rm_map(&a, s.memory, 0, PAGE, &lin);
	TRUE(p && p[0] == 1);
	munmap(p, PAGE);
	rm_close(&elsewhere);
	rm_close(&b);
	rm_close(&a);
}

static void test_fds(void)
{
	struct shared s = { .rm = NULL };
	struct rm a, elsewhere;
	struct rm_export_fd ex = { .type = RM_FD_OBJECT };
	struct rm_import_fd im = { .type = RM_FD_OBJECT };
	uint32_t mem;

	rm_open(&a, 0);
	rm_open(&elsewhere, 1);
	IS(rm_new_memory(&a, 4 * PAGE, &mem), 0);
	ex.device = ex.parent = a.device;
	ex.object = mem;
	ex.fd = a.ctl;
	IS(rm_control(&a, RM_CTRL_EXPORT_FD, &ex, sizeof(ex)), RM_STATE_IN_USE);
	ex.fd = a.gpu_fd;
	IS(rm_control(&a, RM_CTRL_EXPORT_FD, &ex, sizeof(ex)), RM_INVALID_ARGUMENT);
	ex.fd = im.fd = s.fd = ctl_open();
	im.device = im.parent = a.device;
	IS(rm_control(&a, RM_CTRL_IMPORT_FD, &im, sizeof(im)), RM_INVALID_ARGUMENT);
	IS(rm_control(&a, RM_CTRL_EXPORT_FD, &ex, sizeof(ex)), 0);
	IS(rm_control(&a, RM_CTRL_EXPORT_FD, &ex, sizeof(ex)), RM_STATE_IN_USE);
	IS(rm_free(&a, mem), 0);
	IS(rm_stats(&a).used, 4 * PAGE);
	IS(rm_control(&a, RM_CTRL_IMPORT_FD, &im, sizeof(im)), 0);
	TRUE(im.object);
	im.device = im.parent = elsewhere.device;
	im.object = 0;
	IS(rm_control(&elsewhere, RM_CTRL_IMPORT_FD, &im, sizeof(im)), RM_INVALID_PARENT);
	IS(in_child(child_shared, &s), 0);
	IS(in_child(child_shared, &s), 1);
	rm_close(&a);
	rm_open(&a, 0);
	IS(rm_stats(&a).used, 4 * PAGE);
	close(s.fd);
	IS(rm_stats(&a).used, 0);
	rm_close(&elsewhere);
	rm_close(&a);
}

/* All of a client ends with the last copy of its file. */
static int child_copy(void *arg)
{
	int *pipe = arg;
	char byte;

	close(pipe[1]);
	return read(pipe[0], &byte, 1) == 0 ? 0 : 1;
}

static void test_life(void)
{
	struct rm a, watcher;
	uint32_t mem;
	int ends[2], copy, status;
	pid_t pid;

	rm_open(&watcher, 0);
	rm_open(&a, 0);
	IS(rm_new_memory(&a, 4 * PAGE, &mem), 0);
	copy = fcntl(a.ctl, F_DUPFD_CLOEXEC, 0);
	close(a.ctl);
	IS(rm_stats(&watcher).clients, 2);
	a.ctl = copy;
	IS(rm_free(&a, mem), 0);
	close(copy);
	IS(rm_stats(&watcher).clients, 1);
	close(a.gpu_fd);
	/* A forked child has a copy as well. */
	rm_open(&a, 0);
	IS(pipe(ends), 0);
	pid = fork();
	if (!pid)
		_exit(child_copy(ends));
	rm_close(&a);
	IS(rm_stats(&watcher).clients, 2);
	close(ends[1]);
	IS(waitpid(pid, &status, 0), pid);
	IS(status, 0);
	close(ends[0]);
	IS(rm_stats(&watcher).clients, 1);
	/* A child that is killed. */
	pid = fork();
	if (!pid) {
		uint64_t lin;

		rm_open(&a, 0);
		if (!rm_new_memory(&a, 4 * PAGE, &mem) && rm_map(&a, mem, 0, PAGE, &lin))
			kill(getpid(), SIGKILL);
		_exit(1);
	}
	IS(waitpid(pid, &status, 0), pid);
	IS(status, SIGKILL);
	IS(rm_stats(&watcher).clients, 1);
	IS(rm_stats(&watcher).bar_used, 0);
	IS(rm_stats(&watcher).used, 0);
	rm_close(&watcher);
}

static int child_launch(void *arg)
{
	const char **env = arg;
	char sim[4096];
	ssize_t n = readlink("/proc/self/exe", sim, sizeof(sim) - 32);

	if (n < 0)
		return 1;
	sim[n] = '\0';
	strcpy(strrchr(sim, '/'), "/../doubles/rm_sim");
	fclose(stderr);
	setenv(env[0], env[1], 1);
	execl(sim, sim, "true", NULL);
	return 2;
}

/* A bad value ends the process. */
static void test_values(void)
{
	IS(in_child(child_launch, (const char *[]){ "NVRM_SIM_DEVICES", "9" }), 125);
	IS(in_child(child_launch, (const char *[]){ "NVRM_SIM_MACHINE", "grace,wc" }), 125);
	IS(in_child(child_launch, (const char *[]){ "NVRM_SIM_FAIL", "MAP=1" }), 125);
	IS(in_child(child_launch, (const char *[]){ "NVRM_SIM_FAIL", "MAP_MEMORY" }), 125);
}

/* A rule that the program makes itself. */
static void test_fail(void)
{
	struct rm_sim_fail f = { .name = "FREE", .result = RM_NOT_SUPPORTED, .nth = 2 };
	uint32_t mem;
	struct rm r;

	rm_open(&r, 0);
	IS(ioctl(r.ctl, RM_SIM_FAIL, &f), 0);
	IS(rm_new_memory(&r, PAGE, &mem), 0);
	IS(rm_free(&r, 0x1234), RM_NOT_FOUND);
	IS(rm_free(&r, mem), RM_NOT_SUPPORTED);
	IS(rm_free(&r, mem), 0);
	f.result = 0;
	IS(ioctl(r.ctl, RM_SIM_FAIL, &f), 0);
	strcpy(f.name, "REE");
	IS(ioctl_errno(r.ctl, RM_SIM_FAIL, &f), EINVAL);
	rm_close(&r);
}

/*
 * Needs these variables:
 *
 * NVRM_SIM_DEVICES=1 NVRM_SIM_DRIVER=535 NVRM_SIM_BAR1_MIB=1
 * NVRM_SIM_FAIL=DUP_OBJECT=0x51@2,UNMAP_MEMORY=0x1f@1,OPEN=13@5
 */
static void options(void)
{
	uint32_t mem, copy;
	uint64_t lin, lin2;
	struct rm_card_info c[1];
	uint8_t *p;
	struct rm r;
	int fd;

	rm_open(&r, 0);
	IS(cards(r.ctl, c, 1), 1);
	IS(rm_new_memory(&r, 2 * MIB, &mem), 0);
	fd = gpu_open(r.minor);
	IS(rm_map_on(&r, mem, 0, 2 * MIB, fd, &lin), RM_NO_RESOURCES);
	IS(rm_map_on(&r, mem, MIB, MIB, fd, &lin), ANSWER(RM_MAP_BAR1));
	p = mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	TRUE(p != MAP_FAILED);
	close(fd);
	fd = gpu_open(r.minor);
	IS(rm_map_on(&r, mem, 0, PAGE, fd, &lin2), RM_NO_RESOURCES);
	IS(rm_unmap(&r, mem, lin), RM_INVALID_ARGUMENT);
	IS(rm_unmap(&r, mem, lin), 0);
	IS(rm_map_on(&r, mem, 0, PAGE, fd, &lin2), ANSWER(RM_MAP_BAR1));
	close(fd);
	munmap(p, MIB);
	IS(rm_dup(&r, r.client, mem, &copy), 0);
	IS(rm_dup(&r, r.client, mem, &copy), RM_NO_MEMORY);
	IS(rm_dup(&r, r.client, mem, &copy), 0);
	IS(ctl_open(), -1);
	IS(errno, EACCES);
	IS(ioctl_errno(r.gpu_fd, RM_EXPORT_DMABUF, c), EINVAL);
	rm_close(&r);
}

/* A kernel with pages of 64 KiB. Needs NVRM_SIM_PAGE=65536 */
static void large_pages(void)
{
	const uint64_t page = 65536;
	uint64_t lin;
	uint32_t mem;
	struct rm r;
	int fd;

	rm_open(&r, 0);
	IS(rm_new_memory(&r, page + PAGE, &mem), RM_INVALID_ARGUMENT);
	IS(rm_new_memory(&r, 2 * page, &mem), 0);
	fd = gpu_open(r.minor);
	IS(rm_map_on(&r, mem, 0, PAGE, fd, &lin), RM_INVALID_ARGUMENT);
	IS(rm_map_on(&r, mem, PAGE, page, fd, &lin), RM_INVALID_ARGUMENT);
	IS(rm_map_on(&r, mem, page, page, fd, &lin), ANSWER(RM_MAP_BAR1));
	close(fd);
	rm_close(&r);
}

static struct rm_id_info id_info_of(const struct rm *r, uint32_t gpu_id)
{
	struct rm_id_info id = { .gpu_id = gpu_id };

	IS(rm_control(r, RM_CTRL_ID_INFO, &id, sizeof(id)), 0);
	return id;
}

static uint32_t space_of(const struct rm *r, uint32_t object)
{
	struct rm_space p = { .object = object };

	IS(rm_control(r, RM_CTRL_SPACE, &p, sizeof(p)), 0);
	return p.space;
}

/* A control on an object. */
static long control_on(const struct rm *r, uint32_t object, uint32_t cmd, void *params, size_t size)
{
	struct rm_control a = { .client = r->client, .object = object, .cmd = cmd,
				.params = (uintptr_t)params, .params_size = (uint32_t)size };

	return ioctl(r->ctl, RM_CONTROL, &a) ? -errno : (long)a.status;
}

static uint32_t gpu_at(struct rm_card_info *c, int n, uint32_t minor)
{
	int i;

	for (i = 0; i < n; i++)
		if (c[i].valid && c[i].minor == minor)
			return c[i].gpu_id;
	return 0;
}

/* GPU memory that is the CPU's, too, in two pages that are no neighbours. */
static void test_coherent(int card, bool numa)
{
	struct rm_card_info c[32] = { { .valid = 0 } };
	uint64_t lin, size = 0;
	struct rm_id_info id;
	uint32_t mem;
	struct rm r;
	int fd;

	rm_open(&r, card);
	cards(r.ctl, c, 32);
	id = id_info_of(&r, gpu_at(c, 32, r.minor));
	IS(id.flags, RM_ID_ATS);
	TRUE((id.numa >= 0) == numa);
	IS(rm_new_memory(&r, 4 * MIB, &mem), 0);
	IS(space_of(&r, mem), RM_SPACE_VIDEO);
	IS(control_on(&r, mem, RM_CTRL_PAGE_SIZE, &size, sizeof(size)), 0);
	IS(size, 2 * MIB);
	IS(control_on(&r, r.device, RM_CTRL_PAGE_SIZE, &size, sizeof(size)), RM_INVALID_OBJECT);
	fd = gpu_open(r.minor);
	IS(rm_map_on(&r, mem, 0, 4 * MIB, fd, &lin), RM_NOT_FOUND);
	IS(rm_map_on(&r, mem, PAGE, 2 * MIB, fd, &lin), RM_NOT_FOUND);
	IS(rm_map_on(&r, mem, 2 * MIB, 2 * MIB, fd, &lin), ANSWER(RM_MAP_COHERENT));
	close(fd);
	IS(rm_stats(&r).bar_used, 0);
	rm_close(&r);
}

/* GPU memory that is the system's. */
static void test_system(int card)
{
	struct rm_surface_item item = { .index = RM_SURFACE_PHYS_ATTR };
	struct rm_surface list = { .n = 1, .list = (uintptr_t)&item };
	struct rm_card_info c[32] = { { .valid = 0 } };
	uint64_t lin;
	uint32_t mem;
	struct rm r;
	void *p;
	int fd;

	rm_open(&r, card);
	cards(r.ctl, c, 32);
	IS(id_info_of(&r, gpu_at(c, 32, r.minor)).flags, RM_ID_SOC | RM_ID_SOC_IGPU);
	IS(rm_new_memory(&r, 4 * PAGE, &mem), 0);
	IS(space_of(&r, mem), RM_SPACE_SYSTEM);
	IS(control_on(&r, mem, RM_CTRL_SURFACE, &list, sizeof(list)), 0);
	IS(item.data >> 29, 2);
	fd = gpu_open(r.minor);
	IS(rm_map_on(&r, mem, 0, PAGE, fd, &lin), RM_INVALID_ARGUMENT);
	close(fd);
	fd = ctl_open();
	IS(rm_map_on(&r, mem, 2 * PAGE, PAGE, fd, &lin), ANSWER(RM_MAP_SYSTEM));
	TRUE(mmap(NULL, 3 * PAGE, PROT_READ, MAP_SHARED, fd, 0) == MAP_FAILED);
	IS(errno, ERANGE);
	p = mmap(NULL, 2 * PAGE, PROT_READ, MAP_SHARED, fd, 0);
	TRUE(p != MAP_FAILED);
	munmap(p, 2 * PAGE);
	close(fd);
	rm_close(&r);
}

static void test_mig(int card)
{
	struct rm_devices *d = calloc(1, sizeof(*d));
	struct rm_card_info c[32] = { { .valid = 0 } };
	uint32_t mem, copy, i, n = 0;
	struct rm r;

	rm_open(&r, card);
	cards(r.ctl, c, 32);
	IS(rm_control(&r, RM_CTRL_DEVICES, d, sizeof(*d)), 0);
	IS(d->n, 4);
	for (i = 0; i < d->n; i++)
		n += d->list[i].gpu_id == gpu_at(c, 32, r.minor) && d->list[i].gpu_instance != RM_NO_INSTANCE;
	IS(n, 1);
	IS(rm_new_memory(&r, PAGE, &mem), 0);
	IS(rm_dup(&r, r.client, mem, &copy), RM_NOT_FOUND);
	free(d);
	rm_close(&r);
}

/* Needs NVRM_SIM_MACHINE=grace,cdmm,gb10,mig NVRM_SIM_SCATTERED=1 NVRM_SIM_BAR1_DEVICE=1 */
static void machines(void)
{
	struct rm_confidential cc;
	struct rm_chipset chip;
	struct rm_alloc a = { .class = RM_CLASS_CONFIDENTIAL };
	struct rm r;

	/* RM_CARD_INFO has the GPUs in the reverse order. */
	test_coherent(3, true);
	test_coherent(2, false);
	test_system(1);
	test_mig(0);
	rm_open(&r, 0);
	IS(rm_control(&r, RM_CTRL_CHIPSET, &chip, sizeof(chip)), 0);
	IS(chip.flags, 0);
	a.root = a.parent = r.client;
	IS(ioctl(r.ctl, RM_ALLOC, &a), 0);
	IS(a.status, 0);
	IS(control_on(&r, a.object, RM_CTRL_CONFIDENTIAL, &cc, sizeof(cc) - 1), RM_INVALID_ARGUMENT);
	IS(control_on(&r, a.object, RM_CTRL_CONFIDENTIAL, &cc, sizeof(cc)), 0);
	IS(cc.feature + cc.multi_gpu, 0);
	IS(rm_free(&r, a.object), 0);
	rm_close(&r);
}

int main(int argc, char **argv)
{
	setvbuf(stdout, NULL, _IOLBF, 0);
	if (argc > 1 && strcmp(argv[1], "pages") == 0) {
		large_pages();
		return tap_end();
	}
	if (argc > 1 && strcmp(argv[1], "machines") == 0) {
		machines();
		return tap_end();
	}
	if (argc > 1 && strcmp(argv[1], "options") == 0) {
		options();
		test_rm_cuda_old();
		return tap_end();
	}
	test_files();
	test_others();
	test_sizes();
	test_version();
	test_cards();
	test_clients();
	test_devices();
	test_map();
	test_dup();
	test_fds();
	test_life();
	test_fail();
	test_values();
	test_rm_cuda();
	return tap_end();
}
