// SPDX-License-Identifier: MIT
/* guest/common.c - what common.h declares, except what calls the library: see buffer.c. */
#include "common.h"

void note(const char *fmt, ...)
{
	char line[512] = "# ";
	va_list args;
	size_t used;

	va_start(args, fmt);
	vsnprintf(line + 2, sizeof(line) - 3, fmt, args);
	va_end(args);
	used = strlen(line);
	line[used++] = '\n';
	fflush(stdout);
	if (write(STDOUT_FILENO, line, used) < 0)
		_exit(2);
}

void skip_case(const char *fmt, ...)
{
	char why[256];
	va_list args;

	va_start(args, fmt);
	vsnprintf(why, sizeof(why), fmt, args);
	va_end(args);
	note("skipped: %s", why);
	_exit(GUEST_SKIP);
}

int wait_child(pid_t pid, double seconds)
{
	double limit = seconds_now() + PATIENCE * seconds;
	long nap = 50;
	int status;

	for (;;) {
		pid_t got = waitpid(pid, &status, WNOHANG);

		if (got == pid)
			return status;
		if (got < 0 && errno != EINTR)
			return -1;
		if (seconds_now() > limit) {
			kill(pid, SIGKILL);
			waitpid(pid, &status, 0);
			return -1;
		}
		sleep_us(nap);
		if (nap < 5000)
			nap *= 2;
	}
}

bool child_ok(const char *what, int status)
{
	if (status == 0)
		return true;
	if (status == -1)
		note("%s: the child hung", what);
	else if (WIFSIGNALED(status))
		note("%s: the child died of signal %d", what, WTERMSIG(status));
	else
		note("%s: the child ended with %d", what, WEXITSTATUS(status));
	return false;
}

bool in_child(const char *what, void (*fn)(void *), void *arg, double seconds)
{
	pid_t pid;

	fflush(stdout);
	pid = fork();
	if (pid < 0) {
		note("%s: fork: %s", what, strerror(errno));
		return false;
	}
	if (!pid) {
		fn(arg);
		_exit(0);
	}
	return child_ok(what, wait_child(pid, seconds));
}

long proc_number(const char *file, const char *key)
{
	char line[256];
	long value = -1;
	FILE *f = fopen(file, "re");

	if (!f)
		return -1;
	while (value < 0 && fgets(line, sizeof(line), f))
		if (!strncmp(line, key, strlen(key)))
			value = strtol(line + strlen(key), NULL, 10);
	fclose(f);
	return value;
}

long count_fds(void)
{
	DIR *d = opendir("/proc/self/fd");
	long n = -1;	/* the directory's own */

	if (!d)
		return -1;
	for (struct dirent *e; (e = readdir(d)); )
		n += e->d_name[0] != '.';
	closedir(d);
	return n;
}

struct rlimit leave_fds(int free)
{
	struct rlimit old, low;
	int highest = 0;
	DIR *d = opendir("/proc/self/fd");

	expect(d != NULL);
	for (struct dirent *e; (e = readdir(d)); )
		if (e->d_name[0] != '.' && atoi(e->d_name) != dirfd(d) &&
		    atoi(e->d_name) > highest)
			highest = atoi(e->d_name);
	closedir(d);
	expect_is(getrlimit(RLIMIT_NOFILE, &old), 0);
	/* Holes below the highest one would be free, too. */
	for (int fd = 0; fd < highest; fd++)
		if (fcntl(fd, F_GETFD) < 0)
			expect_is(fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, fd), fd);
	low = old;
	low.rlim_cur = highest + 1 + free;
	expect_is(setrlimit(RLIMIT_NOFILE, &low), 0);
	return old;
}

bool is_named(const char *tid, const char *want)
{
	char path[300], name[32] = "";
	FILE *f;

	snprintf(path, sizeof(path), "/proc/self/task/%s/comm", tid);
	f = fopen(path, "re");
	if (!f)
		return false;	/* it ended */
	if (fgets(name, sizeof(name), f))
		name[strcspn(name, "\n")] = '\0';
	fclose(f);
	return !strcmp(name, want);
}

long count_maps_of(const char *text)
{
	char line[1024];
	long n = 0;
	FILE *f = fopen("/proc/self/maps", "re");

	if (!f)
		return -1;
	while (fgets(line, sizeof(line), f))
		n += strstr(line, text) != NULL;
	fclose(f);
	return n;
}

bool is_shared(const void *va)
{
	unsigned long from, to;
	char line[1024], mode[5];
	bool found = false;
	FILE *f = fopen("/proc/self/maps", "re");

	if (!f)
		return false;
	while (!found && fgets(line, sizeof(line), f))
		found = sscanf(line, "%lx-%lx %4s", &from, &to, mode) == 3 && mode[3] == 's' &&
			(uintptr_t)va >= from && (uintptr_t)va < to;
	fclose(f);
	return found;
}

void refuse_call(unsigned int number)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog filter = { 4, code };

	expect_is(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
	if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &filter))
		skip_case("seccomp: %s", strerror(errno));
}

void start_thread(pthread_t *t, size_t stack, void *(*fn)(void *), void *arg)
{
	size_t least = sysconf(_SC_THREAD_STACK_MIN);
	pthread_attr_t attr;

	expect_is(pthread_attr_init(&attr), 0);
	if (stack && stack < least)
		stack = least;
	if (stack)
		expect_is(pthread_attr_setstacksize(&attr, stack), 0);
	expect_is(pthread_create(t, &attr, fn, arg), 0);
	pthread_attr_destroy(&attr);
}

void expect_same_actions(const struct raw_action a[65], const struct raw_action b[65])
{
	int changed = 0;

	for (int sig = 1; sig <= 64; sig++) {
		if (!memcmp(&a[sig], &b[sig], sizeof(a[sig])))
			continue;
		note("the disposition of signal %d has changed", sig);
		changed++;
	}
	expect_is(changed, 0);
}

long scaled(long n)
{
	long m = n * guest_scale;

	return m > 0 ? m : 1;
}

bool on_doubles(void)
{
	const char *set = getenv("GDR_TEST_DOUBLES");

	return set && !strcmp(set, "1");
}

void fail_at(const char *what, const char *file, int line)
{
	note("%s:%d: failed: %s", file, line, what);
	_exit(1);
}

void expect_is_at(long got, long want, const char *what, const char *file, int line)
{
	if (got == want)
		return;
	note("%s:%d: %s is %ld, want %ld", file, line, what, got, want);
	_exit(1);
}

bool succeeds_at(int rc, int other, const char *what, const char *file, int line)
{
	if (!rc || rc == EINVAL || rc == other)
		return !rc;
	note("%s:%d: %s is %d", file, line, what, rc);
	_exit(1);
}

void needs_doubles(const char *why)
{
	if (!on_doubles())
		skip_case("%s", why);
}

bool backend_is(const char *name)
{
	const char *set = getenv("GDRCOPY_BACKEND");

	return set && !strcmp(set, name);
}

double seconds_now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

void sleep_us(long us)
{
	struct timespec t = { us / 1000000, us % 1000000 * 1000 };

	while (nanosleep(&t, &t) && errno == EINTR)
		;
}

uint32_t next_random(uint64_t *state)
{
	*state = *state * 6364136223846793005ull + 1442695040888963407ull;
	return *state >> 33;
}

void run_anew(const char *name)
{
	execl("/proc/self/exe", program_invocation_name, "--anew", name, (char *)NULL);
	_exit(127);
}

long count_threads(void)
{
	const char *others = getenv("GUEST_OTHER_THREADS");

	return proc_number("/proc/self/status", "Threads:") - (others ? atol(others) : 0);
}

long count_threads_settled(long want)
{
	for (int i = 0; i < 200 && count_threads() > want; i++)
		sleep_us(5000);
	return count_threads();
}

long count_maps(void)
{
	return count_maps_of("");
}

long rss_kib(void)
{
	long kib = proc_number("/proc/self/smaps_rollup", "Rss:");

	return kib >= 0 ? kib : proc_number("/proc/self/status", "VmRSS:");
}

static off_t log_from;

void catch_log(void)
{
	log_from = lseek(STDERR_FILENO, 0, SEEK_CUR);
	setenv("GDRCOPY_ENABLE_LOGGING", "1", 1);
	setenv("GDRCOPY_LOG_LEVEL", "3", 1);
}

bool logged(const char *what)
{
	char text[8192];
	ssize_t n = pread(STDERR_FILENO, text, sizeof(text) - 1, log_from);

	text[n > 0 ? n : 0] = '\0';
	return strstr(text, what);
}

void fill_random(unsigned char *p, size_t n, uint64_t seed)
{
	for (size_t i = 0; i < n; i++)
		p[i] = next_random(&seed);
}

void start_threads(pthread_t *t, int n, void *(*fn)(void *), void *arg)
{
	for (int i = 0; i < n; i++)
		start_thread(&t[i], 0, fn, arg);
}

void join_threads(const pthread_t *t, int n)
{
	for (int i = 0; i < n; i++)
		expect_is(pthread_join(t[i], NULL), 0);
}

void run_thread(size_t stack, void *(*fn)(void *), void *arg)
{
	pthread_t t;

	start_thread(&t, stack, fn, arg);
	expect_is(pthread_join(t, NULL), 0);
}

uint64_t read_mask(void)
{
	uint64_t mask = 0;

	expect_is(syscall(SYS_rt_sigprocmask, SIG_BLOCK, NULL, &mask, sizeof(mask)), 0);
	return mask;
}

void read_actions(struct raw_action act[65])
{
	memset(act, 0, 65 * sizeof(*act));
	for (int sig = 1; sig <= 64; sig++)
		if (sig != 32 && sig != 33)
			expect_is(syscall(SYS_rt_sigaction, sig, NULL, &act[sig], 8), 0);
}
