// SPDX-License-Identifier: MIT
/*
 * guest/hosts.c - hosts that do what hosts are allowed to do, and that a library
 * with a runtime in it may trip over: they close all descriptors, change their environment, are privileged.
 */
#include "api.h"

#define VICTIMS 8
#define FRESH 77	/* an errno that nothing sets */

/* All but the standard streams. */
static void close_all_fds(void)
{
#ifdef SYS_close_range
	if (!syscall(SYS_close_range, 3, ~0u, 0))
		return;
#endif
	for (int fd = 3; fd < 1024; fd++)
		close(fd);
}

/* Uses the library; a backend that lost its descriptors says so. */
static void work_or_errno(gdr_t g)
{
	gdr_mem_t mem;
	int rc = gdr_mem_alloc(g, 0, 64 * KIB, 0, &mem);

	if (rc) {
		note("without its descriptors this backend answers %s", strerror(rc));
		return;
	}
	expect_is(gdr_mem_free(g, mem), 0);
	for (int i = 0; i < scaled(100); i++)
		whole_life(g, i);
}

/* All are closed, and the host has files at the numbers that the library may have had. */
static void fds_closed(void)
{
	static const char text[] = "precious data";
	gdr_t g = open_or_fail();
	int victims[VICTIMS];

	close_all_fds();
	for (int i = 0; i < VICTIMS; i++) {
		victims[i] = memfd_create("victim", 0);
		expect_is(write(victims[i], text, sizeof(text)), sizeof(text));
	}
	work_or_errno(g);
	for (int i = 0; i < VICTIMS; i++) {
		char now[2 * sizeof(text)];

		expect_is(pread(victims[i], now, sizeof(now), 0), sizeof(text));
		expect(!memcmp(now, text, sizeof(text)));
	}
	expect_is(gdr_close(g), 0);
}

/* What the environment says after the open does not count: nothing reads it while another thread may change it. */
static void environment_changes(void)
{
	const gdr_mh_t none = { 1 };
	char byte;
	gdr_t g;

	unsetenv("GDRCOPY_ENABLE_LOGGING");
	g = open_or_fail();
	catch_log();
	expect_is(gdr_copy_from_mapping(none, &byte, &byte, 1), EINVAL);
	expect_is(gdr_unpin_buffer(g, none), EINVAL);
	expect(!logged("gdr_"));
	expect_is(gdr_close(g), 0);
}

/* No call that succeeds sets it, so it is the same at the end. */
static void errno_is_kept(void)
{
	int major, minor;
	gdr_cache_t c;
	gdr_t g;

	errno = FRESH;
	g = open_or_fail();
	expect_is(errno, FRESH);
	expect_is(gdr_driver_get_version(g, &major, &minor), 0);
	whole_life(g, 1);
	expect_is(gdr_cache_open(g, MIB, 0, &c), 0);
	expect_is(gdr_cache_close(c), 0);
	expect_is(gdr_close(g), 0);
	expect_is(errno, FRESH);
}

/* The file of the library that this program has, and that of a program beside it. */
static void find_files(char library[PATH_MAX], char program[PATH_MAX])
{
	Dl_info info;
	ssize_t n = readlink("/proc/self/exe", program, PATH_MAX - 1);

	expect(n > 0);
	program[n] = '\0';
	expect(strrchr(program, '/') != NULL);
	strcpy(strrchr(program, '/') + 1, "secure_host");
	expect(dladdr((void *)gdr_runtime_get_version, &info) && realpath(info.dli_fname, library));
}

/* What a privileged program's caller has set does not count. */
static void privileged(void)
{
	char library[PATH_MAX], program[PATH_MAX], copy[PATH_MAX], line[256];
	char *argv[] = { copy, library, NULL };
	char *envp[] = { "GDRCOPY_ENABLE_LOGGING=1", "GDRCOPY_LOG_LEVEL=1", "GDRCOPY_BACKEND=none", NULL };
	int log = memfd_create("log", MFD_CLOEXEC), status;
	pid_t pid;

	if (geteuid())
		skip_case("only root can make a program privileged");
	find_files(library, program);
	copy_library(program, copy);
	expect(log >= 0);
	expect_is(chown(copy, 65533, 65533), 0);
	expect_is(chmod(copy, 06755), 0);
	pid = fork();
	if (!pid) {
		dup2(log, STDERR_FILENO);
		execve(copy, argv, envp);
		_exit(2);
	}
	status = wait_child(pid, 30);
	unlink(copy);
	if (WIFEXITED(status) && (WEXITSTATUS(status) == 3 || WEXITSTATUS(status) == 4))
		skip_case("privileged programs cannot be made here, or cannot read the library");
	expect(child_ok("a privileged program", status));
	expect_is(pread(log, line, sizeof(line), 0), 0);
}

/* What the environment asks for wrongly is EINVAL, and nothing is spoilt. */
static void wrong_settings(void)
{
	gdr_t g;

	setenv("GDRCOPY_COPY_IMPL", "nothing", 1);
	for (int i = 0; i < 2; i++) {
		errno = 0;
		expect(!gdr_open());
		expect_is(errno, EINVAL);
	}
	unsetenv("GDRCOPY_COPY_IMPL");
	g = open_or_fail();
	whole_life(g, 1);
	expect_is(gdr_close(g), 0);
}

const struct guest_case cases[] = {
	{ "all descriptors are closed, their numbers are the host's files", fds_closed, 60, 0 },
	{ "the environment changes after the open", environment_changes, 60, 0 },
	{ "settings that are wrong, and then right", wrong_settings, 60, 0 },
	{ "errno is as it was after success", errno_is_kept, 60, 0 },
	{ "a privileged program takes nothing from its environment", privileged, 60, 0 },
	{ 0 }
};
