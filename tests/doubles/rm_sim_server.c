// SPDX-License-Identifier: MIT
/* Simulated driver: its files, and the programs' system calls. Test code. */
#include "rm_sim.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <linux/seccomp.h>
#include <linux/stat.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/uio.h>
#include <unistd.h>

#define PATH_LEN 32	/* longer than that of any file of the driver's */
#define ARG_MAX_SIZE (1u << _IOC_SIZEBITS)

static int notify;	/* where the system calls come from */
static int events;
static struct rm_file *files;

static void die(const char *what)
{
	perror(what);
	_exit(125);
}

/* 0 or an errno. */
int caller_read(const struct rm_caller *c, uint64_t addr, void *buf, size_t n)
{
	struct iovec here = { buf, n }, there = { (void *)(uintptr_t)addr, n };

	return process_vm_readv(c->tid, &here, 1, &there, 1, 0) == (ssize_t)n ? 0 : EFAULT;
}

int caller_write(const struct rm_caller *c, uint64_t addr, const void *buf, size_t n)
{
	struct iovec here = { (void *)(uintptr_t)buf, n }, there = { (void *)(uintptr_t)addr, n };

	return process_vm_writev(c->tid, &here, 1, &there, 1, 0) == (ssize_t)n ? 0 : EFAULT;
}

/* Whether the caller is a thread of the process. */
bool caller_is(const struct rm_caller *c, pid_t process)
{
	char path[64];

	snprintf(path, sizeof(path), "/proc/%d/task/%d", process, c->tid);
	return c->tid == process || !access(path, F_OK);
}

pid_t caller_process(const struct rm_caller *c)
{
	char path[64], line[128];
	pid_t process = c->tid;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%d/status", c->tid);
	f = fopen(path, "re");
	while (f && fgets(line, sizeof(line), f))
		if (sscanf(line, "Tgid: %d", &process) == 1)
			break;
	if (f)
		fclose(f);
	return process;
}

/* The driver's file that the caller has as descriptor fd, or NULL. */
struct rm_file *caller_file(const struct rm_caller *c, int fd)
{
	struct rm_file *f;
	char path[64];
	struct stat st;

	snprintf(path, sizeof(path), "/proc/%d/fd/%d", c->tid, fd);
	if (fd < 0 || stat(path, &st) || !S_ISFIFO(st.st_mode))
		return NULL;
	for (f = files; f && f->ino != st.st_ino; f = f->next)
		;
	return f;
}

/* Open fd in the caller too. Returns its number there, or a negative errno. */
int caller_give(const struct rm_caller *c, int fd, bool cloexec)
{
	struct seccomp_notif_addfd add = {
		.id = c->id,
		.srcfd = (uint32_t)fd,
		.newfd_flags = cloexec ? O_CLOEXEC : 0,
	};
	int there = ioctl(notify, SECCOMP_IOCTL_NOTIF_ADDFD, &add);

	return there < 0 ? -errno : there;
}

/* Put fd in place of the caller's file. */
int caller_replace(const struct rm_caller *c, int fd)
{
	struct seccomp_notif_addfd add = {
		.id = c->id,
		.flags = SECCOMP_ADDFD_FLAG_SETFD,
		.srcfd = (uint32_t)fd,
		.newfd = (uint32_t)c->fd,
		.newfd_flags = O_CLOEXEC,
	};

	return ioctl(notify, SECCOMP_IOCTL_NOTIF_ADDFD, &add) < 0 ? -errno : c->fd;
}

/* Give *fd to the caller. The file is released when all copies of it are closed. */
struct rm_file *file_new(enum rm_file_kind kind, int gpu, int *fd)
{
	static uint64_t last;
	struct rm_file *f = calloc(1, sizeof(*f));
	struct epoll_event event = { .data.ptr = f };
	int ends[2] = { -1, -1 };
	struct stat st;

	if (!f || pipe2(ends, O_CLOEXEC) || fstat(ends[0], &st) ||
	    epoll_ctl(events, EPOLL_CTL_ADD, ends[1], &event))
		die("rm_sim: a new file");
	*f = (struct rm_file){ .next = files, .kind = kind, .id = ++last, .ino = st.st_ino,
			       .end = ends[1], .gpu = gpu };
	files = f;
	*fd = ends[0];
	return f;
}

struct rm_file *file_first(void)
{
	return files;
}

static void file_release(struct rm_file *f)
{
	struct rm_file **link = &files;

	clients_of_file_end(f);
	if (f->memory)
		memory_put(f->memory);
	while (*link != f)
		link = &(*link)->next;
	*link = f->next;
	close(f->end);
	free(f);
}

static void answer(const struct seccomp_notif *n, int error, int64_t value, uint32_t flags)
{
	struct seccomp_notif_resp r = { .id = n->id, .error = -error, .val = value, .flags = flags };

	/* The caller may have been killed meanwhile. */
	if (ioctl(notify, SECCOMP_IOCTL_NOTIF_SEND, &r) && errno != ENOENT)
		die("rm_sim: answer");
}

/* The string at addr, cut to the buffer. No path of the driver is that long. */
static void caller_path(const struct rm_caller *c, uint64_t addr, char path[PATH_LEN])
{
	size_t n = RM_PAGE - addr % RM_PAGE;

	memset(path, 0, PATH_LEN);
	if (n > PATH_LEN)
		n = PATH_LEN;
	if (!caller_read(c, addr, path, n) && n < PATH_LEN && !memchr(path, 0, n))
		caller_read(c, addr + n, path + n, PATH_LEN - n);
	path[PATH_LEN - 1] = '\0';
}

struct device {
	enum rm_file_kind kind;
	int gpu;
};

/*
 * Returns 0 for a file of the driver, ENOENT for one that the driver lacks, -1 for any
 * other file.
 */
static int find_device(const char *path, struct device *d)
{
	char *end;
	long minor;

	*d = (struct device){ .kind = RM_FILE_CTL };
	if (strcmp(path, RM_CTL_DEVICE) == 0)
		return 0;
	if (strncmp(path, RM_GPU_DEVICE, strlen(RM_GPU_DEVICE)) != 0)
		return -1;
	minor = strtol(path + strlen(RM_GPU_DEVICE), &end, 10);
	if (end == path + strlen(RM_GPU_DEVICE) || *end)
		return -1;
	d->kind = RM_FILE_GPU;
	d->gpu = gpu_by_minor(minor);
	return d->gpu < 0 ? ENOENT : 0;
}

static uint64_t open_flags(const struct rm_caller *c, const struct seccomp_data *d)
{
	struct open_how how = { .flags = 0 };

	switch (d->nr) {
	case SYS_openat:
		return d->args[2];
	case SYS_openat2:
		caller_read(c, d->args[2], &how, sizeof(how));
		return how.flags;
	}
	return d->args[1];
}

static void do_open(const struct rm_caller *c, const struct seccomp_notif *n, const struct device *d)
{
	uint64_t flags = open_flags(c, &n->data);
	int fd, there, error = fault(c, "OPEN");

	if (!error && d->kind == RM_FILE_GPU && fault(c, "LOST"))
		error = ENODEV;
	if (error) {
		answer(n, error, 0, 0);
		return;
	}
	if (d->kind == RM_FILE_GPU)
		gpus[d->gpu].attached = true;
	file_new(d->kind, d->gpu, &fd);
	there = caller_give(c, fd, flags & O_CLOEXEC);
	close(fd);
	answer(n, there < 0 ? -there : 0, there < 0 ? 0 : there, 0);
}

static int do_stat(const struct rm_caller *c, const struct device *d, uint64_t addr)
{
	unsigned int minor = d->kind == RM_FILE_CTL ? RM_CTL_MINOR : gpus[d->gpu].minor;
	struct stat st = { .st_mode = S_IFCHR | 0666, .st_nlink = 1, .st_blksize = RM_PAGE,
			   .st_rdev = makedev(RM_MAJOR, minor) };

	return caller_write(c, addr, &st, sizeof(st));
}

static int do_statx(const struct rm_caller *c, const struct device *d, uint64_t addr)
{
	unsigned int minor = d->kind == RM_FILE_CTL ? RM_CTL_MINOR : gpus[d->gpu].minor;
	struct statx st = { .stx_mask = STATX_BASIC_STATS, .stx_mode = S_IFCHR | 0666,
			    .stx_nlink = 1, .stx_blksize = RM_PAGE,
			    .stx_rdev_major = RM_MAJOR, .stx_rdev_minor = minor };

	return caller_write(c, addr, &st, sizeof(st));
}

/* A call with a path. */
static void do_path(const struct rm_caller *c, const struct seccomp_notif *n)
{
	const __u64 *args = n->data.args;
	char path[PATH_LEN];
	struct device d;
	bool at = true;
	int error;

#ifdef SYS_open
	at = n->data.nr != SYS_open && n->data.nr != SYS_access && n->data.nr != SYS_stat &&
	     n->data.nr != SYS_lstat;
#endif
	caller_path(c, args[at], path);
	error = find_device(path, &d);
	if (error) {
		answer(n, error < 0 ? 0 : error, 0,
		       error < 0 ? SECCOMP_USER_NOTIF_FLAG_CONTINUE : 0);
		return;
	}
	switch (n->data.nr) {
	case SYS_openat:
	case SYS_openat2:
#ifdef SYS_open
	case SYS_open:
#endif
		do_open(c, n, &d);
		return;
#ifdef SYS_open
	case SYS_stat:
	case SYS_lstat:
#endif
	case SYS_newfstatat:
		error = do_stat(c, &d, args[1 + at]);
		break;
	case SYS_statx:
		error = do_statx(c, &d, args[4]);
		break;
	}
	answer(n, error, 0, 0);
}

static void do_ioctl(struct rm_caller *c, const struct seccomp_notif *n)
{
	static uint8_t arg[ARG_MAX_SIZE] __attribute__((aligned(16)));
	unsigned int cmd = (unsigned int)n->data.args[1];
	size_t size = _IOC_SIZE(cmd);
	int error;

	c->fd = (int)n->data.args[0];
	c->file = caller_file(c, c->fd);
	if (!c->file) {
		answer(n, cmd == RM_SIM_MMAP ? ENOTTY : 0, 0,
		       cmd == RM_SIM_MMAP ? 0 : SECCOMP_USER_NOTIF_FLAG_CONTINUE);
		return;
	}
	error = caller_read(c, n->data.args[2], arg, size);
	if (!error)
		error = request(c, cmd, arg);
	if (!error)
		error = caller_write(c, n->data.args[2], arg, size);
	answer(n, error, 0, 0);
	revoke_now();
}

static void call(struct seccomp_notif *n, size_t size)
{
	struct rm_caller c;

	memset(n, 0, size);
	if (ioctl(notify, SECCOMP_IOCTL_NOTIF_RECV, n)) {
		/* The caller was interrupted or killed earlier. */
		if (errno != ENOENT && errno != EINTR)
			die("rm_sim: receive");
		return;
	}
	c = (struct rm_caller){ .id = n->id, .tid = (pid_t)n->pid,
				.code = n->data.instruction_pointer - 2 };
	if (n->data.nr == SYS_ioctl)
		do_ioctl(&c, n);
	else
		do_path(&c, n);
}

/* Serve until no process is left that can make a call. */
void serve(int listener)
{
	struct epoll_event event = { .events = EPOLLIN }, e[16];
	struct seccomp_notif_sizes sizes;
	struct seccomp_notif *n;
	int i, count;

	notify = listener;
	events = epoll_create1(EPOLL_CLOEXEC);
	if (events < 0 || epoll_ctl(events, EPOLL_CTL_ADD, notify, &event) ||
	    syscall(SYS_seccomp, SECCOMP_GET_NOTIF_SIZES, 0, &sizes))
		die("rm_sim: start");
	n = calloc(1, sizes.seccomp_notif);
	if (!n || sizes.seccomp_notif_resp != sizeof(struct seccomp_notif_resp))
		die("rm_sim: another kernel's seccomp");
	for (;;) {
		bool ready = false, released = false;

		count = epoll_wait(events, e, 16, -1);
		if (count < 0 && errno != EINTR)
			die("rm_sim: wait");
		for (i = 0; i < count; i++) {
			if (e[i].data.ptr) {
				file_release(e[i].data.ptr);
				released = true;
			} else if (e[i].events & EPOLLIN) {
				ready = true;
			} else {
				return;
			}
		}
		/* Release the files that a program has closed before this call. */
		if (ready && !released)
			call(n, sizes.seccomp_notif);
	}
}
