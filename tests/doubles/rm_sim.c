// SPDX-License-Identifier: MIT
/*
 * rm_sim PROGRAM [ARGUMENT...] - run a program with a simulated NVIDIA driver. Test code:
 * it is no driver, and never ships.
 *
 * This process becomes the program. A second process is the driver. It gets the requests
 * of the program and of its children. It ends when they have all ended.
 */
#include "rm_sim.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#if defined(__x86_64__)
#define ARCH AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define ARCH AUDIT_ARCH_AARCH64
#else
#define ARCH 0	/* this machine is not supported */
#endif

#ifndef SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV
#define SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV (1UL << 5)
#endif

struct rm_config config;
struct sim_faults rm_faults = {
	.env = "NVRM_SIM_FAIL",
	.known = request_known,
};

static void die(const char *what)
{
	fprintf(stderr, "rm_sim: %s: %s\n", what, strerror(errno));
	exit(125);
}

static unsigned long env_number(const char *name, unsigned long otherwise, unsigned long min,
				unsigned long max)
{
	const char *env = getenv(name);
	unsigned long v;
	char *end;

	if (!env)
		return otherwise;
	v = strtoul(env, &end, 0);
	if (end == env || *end || v < min || v > max) {
		fprintf(stderr, "%s=%s: give a number from %lu to %lu\n", name, env, min, max);
		exit(125);
	}
	return v;
}

static void configure(void)
{
	int i;

	config.gpus = (int)env_number("NVRM_SIM_DEVICES", 4, 1, RM_MAX_GPUS);
	config.driver = (unsigned int)env_number("NVRM_SIM_DRIVER", 580, 535, 999);
	config.page = env_number("NVRM_SIM_PAGE", RM_PAGE, RM_PAGE, 64 << 10);
	config.answer = (unsigned int)env_number("NVRM_SIM_ANSWER", 0, 0, RM_MAP_ANSWER_MASK);
	config.phys_attr = (unsigned int)env_number("NVRM_SIM_PHYS_ATTR", 2, 0, 7);
	config.scattered = env_number("NVRM_SIM_SCATTERED", 0, 0, 1);
	config.bar_is_device = env_number("NVRM_SIM_BAR1_DEVICE", 0, 0, 1);
	for (i = 0; i < config.gpus; i++) {
		config.machine[i] = sim_machine(i);
		if (config.machine[i] == SIM_CDMM && config.driver < 580) {
			fprintf(stderr, "NVRM_SIM_MACHINE=cdmm: NVRM_SIM_DRIVER must be 580 or more\n");
			exit(125);
		}
	}
	config.bar = env_number("NVRM_SIM_BAR1_MIB", 256 << 10, 0, 1 << 20) << 20;
	/* A bad rule ends the process here. */
	sim_fault(&rm_faults, "");
}

#define ARG(n) (offsetof(struct seccomp_data, args[n]))	/* the low half */
#define LOAD(at) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, (at))
#define AND(mask) BPF_STMT(BPF_ALU | BPF_AND | BPF_K, (mask))
#define IF(v, skip_true, skip_false) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (v), (skip_true), (skip_false))
#define TAKE BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF)
#define PASS BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)

/* A system call goes to the driver if (argument & mask) == value. */
#define CALL_IF(nr, n, mask, value) \
	IF((nr), 0, 5), LOAD(ARG(n)), AND(mask), IF((value), 0, 1), TAKE, PASS
#define CALL(nr) IF((nr), 0, 1), TAKE

/*
 * Only files opened to be read and written go to the driver: programs open this driver's
 * files so. All other files are opened without a delay.
 */
static struct sock_filter filter[] = {
	LOAD(offsetof(struct seccomp_data, arch)),
	IF(ARCH, 1, 0),
	PASS,
	LOAD(offsetof(struct seccomp_data, nr)),
	CALL_IF(SYS_ioctl, 1, 0xff00, RM_TYPE << 8),
	CALL_IF(SYS_openat, 2, O_ACCMODE, O_RDWR),
	CALL_IF(SYS_newfstatat, 3, 0x1000 /* AT_EMPTY_PATH */, 0),
	CALL_IF(SYS_statx, 2, 0x1000, 0),
	CALL(SYS_openat2),
	CALL(SYS_faccessat),
	CALL(SYS_faccessat2),
#ifdef SYS_open
	CALL_IF(SYS_open, 1, O_ACCMODE, O_RDWR),
	CALL(SYS_access),
	CALL(SYS_stat),
	CALL(SYS_lstat),
#endif
	PASS,
};

static int install(void)
{
	struct sock_fprog prog = { .len = sizeof(filter) / sizeof(filter[0]), .filter = filter };
	unsigned long flags = SECCOMP_FILTER_FLAG_NEW_LISTENER;
	int fd;

	/* Root alone may leave this out. Set-user-ID programs then work. */
	if (geteuid() && prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
		die("no_new_privs");
	fd = (int)syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER,
			  flags | SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV, &prog);
	if (fd < 0 && errno == EINVAL)
		fd = (int)syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &prog);
	if (fd < 0)
		die("seccomp (inside of another rm_sim?)");
	return fd;
}

union fd_message {
	struct cmsghdr head;
	char space[CMSG_SPACE(sizeof(int))];
};

static void send_fd(int sock, int fd)
{
	union fd_message m = { .head = { .cmsg_len = CMSG_LEN(sizeof(int)),
					 .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS } };
	char byte = 0;
	struct iovec iov = { &byte, 1 };
	struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = &m,
			      .msg_controllen = sizeof(m) };

	memcpy(CMSG_DATA(&m.head), &fd, sizeof(fd));
	if (sendmsg(sock, &msg, 0) != 1)
		die("sendmsg");
}

/* Returns -1 if the program was never started. */
static int receive_fd(int sock)
{
	union fd_message m;
	char byte;
	struct iovec iov = { &byte, 1 };
	struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = &m,
			      .msg_controllen = sizeof(m) };
	int fd;

	if (recvmsg(sock, &msg, MSG_CMSG_CLOEXEC) != 1 || msg.msg_controllen < sizeof(m.head))
		return -1;
	memcpy(&fd, CMSG_DATA(&m.head), sizeof(fd));
	return fd;
}

/* The driver keeps none of the program's files but stderr. */
static void driver(int sock)
{
	struct rlimit lim;
	int fd, null = open("/dev/null", O_RDWR | O_CLOEXEC);

	if (null < 0 || dup2(null, 0) < 0 || dup2(null, 1) < 0 || dup2(sock, 3) < 0)
		die("the driver's files");
	close_range(4, UINT_MAX, 0);
	setsid();
	if (!getrlimit(RLIMIT_NOFILE, &lim)) {
		lim.rlim_cur = lim.rlim_max;
		setrlimit(RLIMIT_NOFILE, &lim);
	}
	fd = receive_fd(3);
	close(3);
	if (fd >= 0)
		serve(fd);
	_exit(0);
}

/* The driver is not the program's child, as the program may wait for any child. */
static int start_driver(void)
{
	int sock[2], status;
	pid_t pid;

	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sock))
		die("socketpair");
	pid = fork();
	if (pid < 0)
		die("fork");
	if (!pid) {
		close(sock[0]);
		pid = fork();
		if (!pid)
			driver(sock[1]);
		_exit(pid < 0);
	}
	if (waitpid(pid, &status, 0) != pid || status)
		die("fork");
	close(sock[1]);
	return sock[0];
}

int main(int argc, char **argv)
{
	int sock, listener;

	if (argc < 2) {
		fprintf(stderr, "usage: rm_sim PROGRAM [ARGUMENT...]\n");
		return 125;
	}
	if (!ARCH) {
		fprintf(stderr, "rm_sim: not on this machine\n");
		return 125;
	}
	configure();
	sock = start_driver();
	if (setenv("CUDA_SIM_RM", "1", 1))
		die("setenv");
	listener = install();
	send_fd(sock, listener);
	close(listener);
	close(sock);
	execvp(argv[1], argv + 1);
	die(argv[1]);
}
