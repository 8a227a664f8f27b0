// SPDX-License-Identifier: MIT
/*
 * Simulated libcuda: start, errors, control by tests. Test code: it
 * is no CUDA driver, and never ships.
 */
#include "cuda_sim.h"

#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static atomic_int init_pid;	/* 0 until cuInit */
static int devices;		/* set by cuInit */
unsigned long live;

long env_number(const char *name, long otherwise, long max)
{
	const char *env = getenv(name);
	char *end;
	long v;

	if (!env)
		return otherwise;
	v = strtol(env, &end, 10);
	if (end == env || *end || v < 0 || v > max) {
		fprintf(stderr, "%s=%s: give a number from 0 to %ld\n", name, env, max);
		abort();
	}
	return v;
}

int driver_version(void)
{
	return (int)env_number("CUDA_SIM_DRIVER_VERSION",
			       rm_mode() ? rm_driver_version() : DMABUF_DRIVER_VERSION, 1000000);
}

int device_count(void)
{
	return devices;
}

/* "1" or "0" for every device, or a comma list with a value for each. */
bool device_flag(const char *env, int device, bool otherwise)
{
	const char *s = getenv(env);
	int i;

	if (!s)
		return otherwise;
	for (i = 0; i < device && strchr(s, ','); i++)
		s = strchr(s, ',') + 1;
	if ((*s != '0' && *s != '1') || (s[1] && s[1] != ',')) {
		fprintf(stderr, "%s=%s: give 0 or 1, or a comma list of them\n", env, getenv(env));
		abort();
	}
	return *s == '1';
}

uint64_t next_id(void)
{
	static uint64_t last;

	return ++last;
}

/* What a test does between two calls of whoever it tests. */
static struct {
	void (*fn)(void);
	unsigned long nth;	/* 0: it is done */
} between;

/* fn runs before the nth call from now on. Returns how many calls the last one still waits for. */
SIM_API unsigned long cuda_sim_between(void (*fn)(void), unsigned long nth)
{
	unsigned long left = between.nth;

	between.fn = fn;
	between.nth = nth;
	return left;
}

static bool between_calls(void)
{
	if (!between.nth || --between.nth)
		return false;
	between.fn();
	return true;
}

/*
 * Returns 0 with the lock held, or a result without it. A child that was forked
 * after cuInit has no CUDA. There the lock may be held for ever, by a thread that
 * only the parent has.
 */
int enter(const char *name)
{
	int result, pid = atomic_load(&init_pid);

	if (!pid || pid != getpid())
		return CU_NOT_INITIALIZED;
	between_calls();
	result = fault(name);
	if (result)
		return result;
	pthread_mutex_lock(&lock);
	result = capture_forbids(name);
	return result ? leave(result) : CU_OK;
}

/* The same in the middle of an answer, with the lock held. Whether it happened. */
bool between_answers(void)
{
	bool happened;

	pthread_mutex_unlock(&lock);
	happened = between_calls();
	pthread_mutex_lock(&lock);
	return happened;
}

/* The real driver reads the freed memory of a context that cuCtxDestroy has ended. */
_Noreturn void fault_in_driver(const char *name)
{
	fprintf(stderr, "simulated libcuda: %s in a context that is none any more\n", name);
	signal(SIGSEGV, SIG_DFL);
	raise(SIGSEGV);
	abort();
}

/* The same, for a call that needs a current context that is alive. */
int enter_ctx(const char *name)
{
	const struct ctx *ctx;
	int result = enter(name);

	if (result)
		return result;
	ctx = current_ctx();
	if (ctx && ctx_alive(ctx))
		return ctx->lost ? leave(CU_LAUNCH_FAILED) : CU_OK;
	if (ctx && !ctx->primary)
		fault_in_driver(name);
	return leave(ctx ? CU_CONTEXT_DESTROYED : CU_INVALID_CONTEXT);
}

static void take_locks(void)
{
	pthread_mutex_lock(&lock);
	pthread_mutex_lock(&notes_lock);
}

static void leave_locks(void)
{
	pthread_mutex_unlock(&notes_lock);
	pthread_mutex_unlock(&lock);
}

int leave(int result)
{
	pthread_mutex_unlock(&lock);
	return result;
}

/* Waits for cond, without the lock meanwhile. */
void wait_unlocked(pthread_cond_t *cond)
{
	pthread_cond_wait(cond, &lock);
}

/* A child that forked before cuInit was through must find the locks free. */
__attribute__((constructor)) static void lock_around_fork(void)
{
	if (pthread_atfork(take_locks, leave_locks, leave_locks))
		abort();
}

static void at_exit(void)
{
}

/*
 * libcuda's constructors register two (535.261.03). A child that loads it then waits for the
 * C library's list of them, which a thread of the parent that unloads a library may have.
 */
__attribute__((constructor)) static void use_list_of_exit(void)
{
	if (atexit(at_exit) || atexit(at_exit))
		abort();
}

static int init(void)
{
	int result;

	devices = (int)env_number("CUDA_SIM_DEVICES", 2, SIM_MAX_DEVICES);
	if (!devices)
		return CU_NO_DEVICE;
	result = va_init();
	if (!result && kernel_mode())
		result = kernel_init();
	else if (!result && rm_mode())
		result = rm_init(&devices);
	if (result)
		return result;
	atomic_store(&init_pid, (int)getpid());
	return CU_OK;
}

SIM_API int cuInit(unsigned int flags)
{
	int result, pid = atomic_load(&init_pid);

	if (pid && pid != getpid())
		return CU_NOT_INITIALIZED;
	result = fault(__func__);
	if (result)
		return result;
	if (flags)
		return CU_INVALID_VALUE;
	pthread_mutex_lock(&lock);
	if (!atomic_load(&init_pid))
		result = init();
	pthread_mutex_unlock(&lock);
	return result;
}

SIM_API int cuDriverGetVersion(int *version)
{
	int result = fault(__func__);

	if (result)
		return result;
	if (!version)
		return CU_INVALID_VALUE;
	*version = driver_version();
	return CU_OK;
}

static const struct {
	int result;
	const char *name;
} errors[] = {
	{ CU_OK, "CUDA_SUCCESS" },
	{ CU_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE" },
	{ CU_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY" },
	{ CU_NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED" },
	{ 4, "CUDA_ERROR_DEINITIALIZED" },
	{ CU_NO_DEVICE, "CUDA_ERROR_NO_DEVICE" },
	{ CU_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE" },
	{ CU_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT" },
	{ CU_OPERATING_SYSTEM, "CUDA_ERROR_OPERATING_SYSTEM" },
	{ CU_INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE" },
	{ CU_ILLEGAL_STATE, "CUDA_ERROR_ILLEGAL_STATE" },
	{ CU_NOT_FOUND, "CUDA_ERROR_NOT_FOUND" },
	{ CU_NOT_READY, "CUDA_ERROR_NOT_READY" },
	{ CU_CONTEXT_DESTROYED, "CUDA_ERROR_CONTEXT_IS_DESTROYED" },
	{ CU_HOST_ALREADY_REGISTERED, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED" },
	{ CU_HOST_NOT_REGISTERED, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED" },
	{ CU_LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED" },
	{ CU_NOT_PERMITTED, "CUDA_ERROR_NOT_PERMITTED" },
	{ CU_NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED" },
	{ CU_CAPTURE_UNSUPPORTED, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED" },
	{ CU_CAPTURE_INVALIDATED, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED" },
	{ CU_CAPTURE_WRONG_THREAD, "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD" },
	{ CU_UNKNOWN, "CUDA_ERROR_UNKNOWN" },
};

SIM_API int cuGetErrorName(int result, const char **name)
{
	size_t i = 0, n = sizeof(errors) / sizeof(errors[0]);

	if (!name)
		return CU_INVALID_VALUE;
	while (i < n && errors[i].result != result)
		i++;
	*name = i == n ? NULL : errors[i].name;
	return *name ? CU_OK : CU_INVALID_VALUE;
}

/* The name is the text, too. */
SIM_API int cuGetErrorString(int result, const char **text)
{
	return cuGetErrorName(result, text);
}

/* An exported function of this library, NULL where there is none. */
void *own_symbol(const char *name)
{
	Dl_info self;
	void *lib, *symbol;

	if (!dladdr(errors, &self))
		return NULL;
	lib = dlopen(self.dli_fname, RTLD_NOW | RTLD_NOLOAD);
	if (!lib)
		return NULL;
	symbol = dlsym(lib, name);
	dlclose(lib);
	return symbol;
}

/* The plain name stands for the newest exported form of the function. */
SIM_API int cuGetProcAddress_v2(const char *name, void **fn, int version, uint64_t flags, int *status)
{
	char versioned[80];
	int result = fault(__func__);

	if (result)
		return result;
	if (!name || !*name || !fn || version <= 0 || flags > 2)
		return CU_INVALID_VALUE;
	*fn = NULL;
	if (strncmp(name, "cu", 2) == 0 && strncmp(name, "cuda", 4) != 0 && !strstr(name, "_v2")) {
		snprintf(versioned, sizeof(versioned), "%s_v2", name);
		*fn = own_symbol(versioned);
		if (!*fn)
			*fn = own_symbol(name);
	}
	if (status)
		*status = *fn ? 0 : 1;
	return *fn ? CU_OK : CU_NOT_FOUND;
}

/* The name of CUDA 11, which does not tell why. */
SIM_API int cuGetProcAddress(const char *name, void **fn, int version, uint64_t flags)
{
	return cuGetProcAddress_v2(name, fn, version, flags, NULL);
}

/*
 * Buffers, host memory, reservations, mappings, references to handles, and the exported descriptors that this process
 * still has open; with the simulated driver also the memory objects that this process has by clients of others, and
 * their mappings.
 */
SIM_API unsigned long cuda_sim_live(void)
{
	unsigned long n;
	int pid = atomic_load(&init_pid);

	if (!pid || pid != getpid())
		return 0;
	pthread_mutex_lock(&lock);
	n = live + exported_fds() + (rm_mode() ? rm_live() : 0);
	pthread_mutex_unlock(&lock);
	return n;
}
