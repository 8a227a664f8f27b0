// SPDX-License-Identifier: MIT
/*
 * watch_test.c - capi/guest/watch.c, on stand-ins for libcuda: a slot of ioctl, and an export that
 * makes what requests its caller lists, by the slot.
 *
 * What must hold: the request is seen, nobody else's is, and the stand-in is as it was before. Where
 * libcuda's slot lies finds capi/guest (slot_test.go).
 */
#define _GNU_SOURCE
#include "guest/watch.h"

#include "tap.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define BYTES 65536

/* The request of open-gpu-kernel-modules, by its size in bytes. */
#define EXPORT(size) _IOC(_IOC_READ | _IOC_WRITE, 'F', 217, size)
#define OBJECT 0x5c
#define OLD 2600u
#define NEW 2608u

typedef int (*ioctl_fn)(int fd, unsigned long request, ...);

static struct tap tap;
static int null_fd;

/* A stand-in: bound when it is called, or when it is loaded, and then read-only. */
struct standin {
	_Atomic(ioctl_fn) *slot;	/* at the start of a page */
	struct gdr_watch_slot is;
};

enum { LAZY, RELRO };
static const char *const names[] = { "lazy", "relro" };

struct watched_request {
	int fd;
	unsigned long request;
	void *arg;
	int result;		/* of ioctl */
	int error;		/* errno after it */
};

/* What an export is to do: its addr, which in CUDA is one of the GPU's. */
struct watched_plan {
	const struct standin *of;
	void (*middle)(void *arg);	/* called before the requests; may be NULL */
	void *arg;
	struct watched_request *request;
	size_t requests;
	int fd;			/* given to the caller */
	int result;		/* CUresult, returned */

	/* what the export was called with */
	int calls;
	size_t size;
	int type;
	unsigned long long flags;
};

static _Thread_local const struct standin *calling;

/* What a slot holds that is not bound: binds it. */
static int bind_slot(int fd, unsigned long request, ...)
{
	va_list ap;
	void *arg;

	va_start(ap, request);
	arg = va_arg(ap, void *);
	va_end(ap);
	atomic_store(calling->slot, ioctl);
	return ioctl(fd, request, arg);
}

/* Calls ioctl as the stand-in does, from any thread. */
static int call(const struct standin *s, int fd, unsigned long request, void *arg)
{
	calling = s;
	return atomic_load(s->slot)(fd, request, arg);
}

/* The signature of cuMemGetHandleForAddressRange. */
static int watched_export(void *handle, unsigned long long addr, size_t size, int type, unsigned long long flags)
{
	struct watched_plan *plan = (void *)(uintptr_t)addr;

	plan->calls++;
	plan->size = size;
	plan->type = type;
	plan->flags = flags;
	if (plan->middle)
		plan->middle(plan->arg);
	for (size_t i = 0; i < plan->requests; i++) {
		struct watched_request *r = &plan->request[i];

		errno = 0;
		r->result = call(plan->of, r->fd, r->request, r->arg);
		r->error = errno;
	}
	*(int *)handle = plan->fd;
	return plan->result;
}

/* "r--p" and so on, of the page that p lies in. */
static const char *access_of(const void *p)
{
	static char got[5];
	unsigned long low, high;
	char line[512];
	FILE *maps = fopen("/proc/self/maps", "r");

	strcpy(got, "none");
	while (maps && fgets(line, sizeof(line), maps)) {
		if (sscanf(line, "%lx-%lx %4s", &low, &high, got) == 3 &&
		    (unsigned long)p >= low && (unsigned long)p < high)
			break;
		strcpy(got, "none");
	}
	if (maps)
		fclose(maps);
	return got;
}

static struct standin load(int how)
{
	size_t page = sysconf(_SC_PAGESIZE);
	struct standin s = { .slot = mmap(NULL, page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) };

	if (s.slot == MAP_FAILED)
		exit(2);
	atomic_store(s.slot, how == LAZY ? bind_slot : ioctl);
	if (how == RELRO && mprotect((void *)s.slot, page, PROT_READ))
		exit(2);
	s.is = (struct gdr_watch_slot){ .at = (uintptr_t)s.slot, .low = (uintptr_t)bind_slot, .high = (uintptr_t)bind_slot + 1,
					.read_only = how == RELRO };
	return s;
}

/* Room for a struct of any size, and more. */
struct form {
	unsigned char bytes[4096];
};

/* Each byte has its place in it, and tells one object's from another's. */
static void *form(struct form *f, unsigned char object)
{
	for (size_t i = 0; i < sizeof(f->bytes); i++)
		f->bytes[i] = i ^ object;
	return f->bytes;
}

/* Watches one export that runs plan. */
static int watch(const struct standin *s, struct watched_plan *plan, struct gdr_watch *w)
{
	plan->of = s;
	return gdr_watch_export(&s->is, watched_export, (uintptr_t)plan, BYTES, w);
}

static struct watched_request asks(unsigned long request, void *arg)
{
	return (struct watched_request){ .fd = null_fd, .request = request, .arg = arg };
}

/* One watched export, and what comes of it. */
struct export {
	struct form form;
	struct watched_request request;
	struct watched_plan plan;
	struct gdr_watch w;
	int rc;
};

/* An export through s that calls middle(arg), which may be NULL, and then makes the request; 0: none. */
static void export_with(struct export *e, const struct standin *s, void (*middle)(void *), void *arg,
			unsigned long request)
{
	e->request = asks(request, form(&e->form, OBJECT));
	e->plan = (struct watched_plan){ .middle = middle, .arg = arg, .request = &e->request, .requests = request != 0 };
	memset(&e->w, 0xee, sizeof(e->w));
	e->rc = watch(s, &e->plan, &e->w);
}

/* Whether w is what an export of one request of size bytes shows. */
static bool saw(const struct gdr_watch *w, unsigned int size)
{
	struct form want;

	form(&want, OBJECT);
	if (size < sizeof(w->head))
		memset(want.bytes + size, 0, sizeof(w->head) - size);
	return w->requests == 1 && w->size == size && !memcmp(w->head, want.bytes, sizeof(w->head));
}

static bool saw_nothing(const struct gdr_watch *w)
{
	static const struct gdr_watch nothing;

	return !w->requests && !w->size && !memcmp(w->head, nothing.head, sizeof(w->head));
}

/* One export through s of one request; returns whether it was seen. */
static bool sees(const struct standin *s)
{
	struct export e;

	export_with(&e, s, NULL, NULL, EXPORT(NEW));
	return !e.rc && e.plan.calls == 1 && saw(&e.w, NEW);
}

/* Nothing was called, and nothing is told. */
static bool is_refused(const struct export *e)
{
	return e->rc == ENOTSUP && !e->plan.calls && saw_nothing(&e->w) && e->w.fd == -1;
}

static void test_lazy(void)
{
	struct standin s = load(LAZY);
	ioctl_fn first = atomic_load(s.slot);

	tap_ok(&tap, sees(&s), "lazy: the request is seen");
	tap_ok(&tap, atomic_load(s.slot) == first, "lazy: the slot is as it was");
	tap_ok(&tap, sees(&s), "lazy: a second time");
	tap_ok(&tap, call(&s, -1, FIONREAD, NULL) == -1 && errno == EBADF && atomic_load(s.slot) == ioctl,
	       "lazy: the stand-in then binds it");
	tap_ok(&tap, sees(&s) && atomic_load(s.slot) == ioctl, "lazy: bound, it is seen and put back");
}

/* What is noted of each request: no more of it than there is. */
static void test_requests(void)
{
	static const struct {
		const char *what;
		unsigned long request;
		bool null, noted;
	} row[] = {
		{ "2600 bytes", EXPORT(OLD), .noted = true },
		{ "575 bytes", EXPORT(575), .noted = true },
		{ "no bytes", EXPORT(0), .noted = true },
		{ "no struct", EXPORT(NEW), .null = true },
		{ "another number", _IOC(3, 'F', 216, NEW), .noted = false },
		{ "another magic", _IOC(3, 'G', 217, NEW), .noted = false },
	};
	struct standin s = load(LAZY);

	for (size_t i = 0; i < sizeof(row) / sizeof(*row); i++) {
		struct form f;
		void *arg = form(&f, OBJECT);
		struct watched_request r = asks(row[i].request, row[i].null ? NULL : arg);
		struct watched_plan plan = { .request = &r, .requests = 1 };
		struct gdr_watch w;
		bool ok = !watch(&s, &plan, &w);

		ok = ok && (row[i].noted ? saw(&w, _IOC_SIZE(row[i].request)) : saw_nothing(&w));
		tap_ok(&tap, ok, "request: %s", row[i].what);
		tap_ok(&tap, r.result == -1 && r.error == ENOTTY, "request: %s: the kernel's answer is given", row[i].what);
	}
}

static void test_export(void)
{
	struct standin s = load(LAZY);
	struct form f[3];
	struct watched_request r[3] = {
		asks(EXPORT(OLD), form(&f[0], OBJECT)),
		asks(EXPORT(NEW), form(&f[1], OBJECT + 1)),
		asks(EXPORT(16), form(&f[2], OBJECT + 2)),
	};
	struct watched_plan plan = { .fd = 7, .result = 1 };
	struct gdr_watch w;

	tap_is(&tap, watch(&s, &plan, &w), 0, "export without a request: the return");
	tap_ok(&tap, saw_nothing(&w), "export without a request: none is noted");
	tap_ok(&tap, w.result == 1 && w.fd == 7, "export: its result and descriptor are given");
	tap_ok(&tap, plan.calls == 1 && plan.size == BYTES && plan.type == 1 && !plan.flags,
	       "export: called once, for a dma-buf");
	plan = (struct watched_plan){ .request = r, .requests = 3, .fd = -1 };
	tap_ok(&tap, !watch(&s, &plan, &w) && w.requests == 3, "three requests: counted");
	w.requests = 1;
	tap_ok(&tap, saw(&w, OLD), "three requests: the first one's are told");
}

static void access_in_middle(void *arg)
{
	const struct standin *s = arg;

	tap_ok(&tap, !strncmp(access_of(s->slot), "rw", 2), "relro: writable while an export runs");
}

static void test_relro(void)
{
	struct standin s = load(RELRO);
	struct export e;
	ioctl_fn first;

	tap_ok(&tap, !strcmp(access_of(s.slot), "r--p"), "relro: the loader made the slot read-only");
	first = atomic_load(s.slot);
	export_with(&e, &s, access_in_middle, &s, 0);
	tap_ok(&tap, !e.rc, "relro: it can be watched");
	for (int i = 0; i < 3; i++) {
		tap_ok(&tap, sees(&s), "relro: the request is seen, %d", i);
		tap_ok(&tap, !strcmp(access_of(s.slot), "r--p") && atomic_load(s.slot) == first,
		       "relro: the slot is as it was, and read-only, %d", i);
	}
}

struct another {
	struct standin s;
	struct export e;
};

static void watch_another(void *arg)
{
	struct another *a = arg;

	export_with(&a->e, &a->s, NULL, NULL, 0);
}

/* In the middle of a watch no other libcuda is watched; afterwards it is. */
static void test_another(void)
{
	struct standin s = load(LAZY);
	struct another a = { .s = load(LAZY) };
	ioctl_fn first = atomic_load(s.slot), its = atomic_load(a.s.slot);
	struct export e;

	export_with(&e, &s, watch_another, &a, 0);
	tap_ok(&tap, !e.rc && is_refused(&a.e), "another libcuda meanwhile: ENOTSUP, nothing told, not called");
	tap_ok(&tap, sees(&a.s) && sees(&s), "another libcuda: each is watched in its turn");
	tap_ok(&tap, atomic_load(s.slot) == first && atomic_load(a.s.slot) == its, "another libcuda: both are as they were");
}

/* A tool makes the slot's page read-only again, as the loader had. */
static void protect_again(void *arg)
{
	const struct standin *s = arg;
	uintptr_t page = sysconf(_SC_PAGESIZE);

	if (mprotect((void *)(s->is.at & -page), page, PROT_READ))
		exit(2);
}

static void test_protected(void)
{
	struct standin s = load(RELRO);
	ioctl_fn first = atomic_load(s.slot);
	struct export e;

	export_with(&e, &s, protect_again, &s, EXPORT(NEW));
	tap_ok(&tap, !e.rc && saw(&e.w, NEW) && atomic_load(s.slot) == first && !strcmp(access_of(s.slot), "r--p"),
	       "protected meanwhile: the slot is put back");
}

/* A slot whose page cannot be made writable: of a file that was opened to be read. */
static void test_refused(void)
{
	struct standin s = load(RELRO), bad = s;
	int fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
	void *page = mmap(NULL, 1, PROT_READ, MAP_SHARED, fd, 0);
	struct export e;

	if (page == MAP_FAILED)
		exit(2);
	bad.is.at = (uintptr_t)page + 8;
	export_with(&e, &bad, NULL, NULL, 0);
	tap_ok(&tap, is_refused(&e), "refused by mprotect: ENOTSUP, not called, nothing told");
	tap_ok(&tap, !strncmp(access_of(page), "r--", 3), "refused by mprotect: the page is as it was");
	tap_ok(&tap, sees(&s), "refused by mprotect: another one is watched");
	munmap(page, 1);
	close(fd);
}

/* A tool that calls what it found in the slot, and counts what passes through it. */
static _Atomic long passed;
static ioctl_fn found;

static int tool(int fd, unsigned long request, ...)
{
	va_list ap;
	void *arg;

	va_start(ap, request);
	arg = va_arg(ap, void *);
	va_end(ap);
	if (++passed > 1000)
		_exit(3);	/* it calls itself without end */
	return found(fd, request, arg);
}

static void attach(void *arg)
{
	const struct standin *s = arg;

	found = atomic_load(s->slot);
	atomic_store(s->slot, tool);
}

static void detach(const struct standin *s)
{
	atomic_store(s->slot, found);
	found = NULL;	/* to be called by mistake */
}

/* Whether a request passes through the tool so many times. */
static bool passes(const struct standin *s, long times)
{
	passed = 0;
	return call(s, -1, FIONREAD, NULL) == -1 && errno == EBADF && passed == times;
}

/* A stand-in whose slot is bound. */
static struct standin load_bound(void)
{
	struct standin s = load(LAZY);

	call(&s, -1, 0, NULL);
	return s;
}

static bool refuses(const struct standin *s)
{
	struct export e;

	export_with(&e, s, NULL, NULL, 0);
	return is_refused(&e) && passes(s, 1);
}

static bool tool_at_first(void)
{
	struct standin s = load_bound();

	for (int i = 0; i < 2; i++) {
		attach(&s);
		passed = 0;
		if (!sees(&s) || passed != 1 || atomic_load(s.slot) != tool || !passes(&s, 1))
			return false;
		detach(&s);
		if (!sees(&s) || !passes(&s, 0))
			return false;
	}
	return true;
}

static bool tool_later(void)
{
	struct standin s = load_bound();
	bool good = sees(&s);

	attach(&s);
	good = good && refuses(&s) && atomic_load(s.slot) == tool;
	detach(&s);
	return good && sees(&s) && passes(&s, 0);
}

/* What it found in the slot is our function. */
static bool attaches(struct standin s)
{
	ioctl_fn first = atomic_load(s.slot);
	struct export e;
	bool good;

	export_with(&e, &s, attach, &s, EXPORT(NEW));
	good = !e.rc && saw(&e.w, NEW) && atomic_load(s.slot) == tool && passes(&s, 1);
	good = good && refuses(&s) && refuses(&s);
	detach(&s);
	return good && passes(&s, 0) && sees(&s) && atomic_load(s.slot) == first;
}

static bool tool_meanwhile(void) { return attaches(load_bound()); }

/* In processes where no request has gone anywhere yet. */
static void test_first(const char *what, bool (*f)(void))
{
	int status = -1;
	pid_t child;

	fflush(stdout);
	child = fork();
	if (!child)
		_exit(!f());
	waitpid(child, &status, 0);
	tap_ok(&tap, !status, "before any request: %s", what);
}

/* A thread leaves an export by siglongjmp, as a handler of the host's may, and watches again. */
static sigjmp_buf jump;

static void leave(void *arg)
{
	(void)arg;
	siglongjmp(jump, 1);
}

static void test_left(void)
{
	struct standin s = load(LAZY);
	ioctl_fn first = atomic_load(s.slot);
	struct export e;

	if (!sigsetjmp(jump, 0)) {
		export_with(&e, &s, leave, NULL, 0);
		exit(2);
	}
	tap_ok(&tap, sees(&s) && atomic_load(s.slot) == first, "left: the thread watches again, and the slot is put back");
}

static void test_changed_meanwhile(int how)
{
	const char *name = names[how];
	struct standin s = load(how);
	ioctl_fn first = atomic_load(s.slot);
	const char *was = strdup(access_of(s.slot));
	struct export e;

	passed = 0;
	export_with(&e, &s, attach, &s, FIONREAD);
	tap_ok(&tap, !e.rc && passed == 1 && saw_nothing(&e.w), "%s changed meanwhile: the export ends", name);
	tap_ok(&tap, atomic_load(s.slot) == tool, "%s changed meanwhile: the slot is left alone", name);
	tap_ok(&tap, !strcmp(access_of(s.slot), was), "%s changed meanwhile: its page is %s", name, was);
	/* Only a writable slot can be put back from here. */
	if (was[1] == 'w')
		atomic_store(s.slot, first);
	free((void *)was);
}

/* Calls of one thread through the stand-in, each with an answer that is known. */
struct caller {
	struct standin s;
	int pipe[2];
	int bytes;		/* in the pipe, other than any other caller's */
	long calls, wrong;
	struct form form;
};

static void caller_init(struct caller *c, struct standin s, int bytes)
{
	char data[256] = "";

	*c = (struct caller){ .s = s, .bytes = bytes };
	if (pipe(c->pipe) || write(c->pipe[1], data, bytes) != bytes)
		exit(2);
}

static void caller_end(struct caller *c)
{
	close(c->pipe[0]);
	close(c->pipe[1]);
}

static void call_once(struct caller *c)
{
	void *export = form(&c->form, 0xbd);
	int n = -1;

	errno = 0;
	c->wrong += call(&c->s, c->pipe[0], FIONREAD, &n) != 0 || n != c->bytes || errno;
	errno = 0;
	c->wrong += call(&c->s, -1, FIONREAD, &n) != -1 || errno != EBADF;
	errno = 0;
	c->wrong += call(&c->s, null_fd, EXPORT(c->calls & 1 ? OLD : NEW), export) != -1 || errno != ENOTTY;
	c->calls++;
}

#define CALLERS 64
#define WATCHERS 4
#define WATCHES 200

static struct caller callers[CALLERS];
static pthread_t caller_thread[CALLERS];
static _Atomic bool stop;
static sem_t called;

static void *call_on(void *arg)
{
	call_once(arg);
	sem_post(&called);
	while (!stop) {
		call_once(arg);
		sched_yield();
	}
	return NULL;
}

/* Each of them has called in the middle of the watch. */
static void start_callers(void *arg)
{
	(void)arg;
	for (int i = 0; i < CALLERS; i++)
		if (pthread_create(&caller_thread[i], NULL, call_on, &callers[i]))
			exit(2);
	for (int i = 0; i < CALLERS; i++)
		sem_wait(&called);
}

/* Lets another watcher come, if the lock would. */
static void yield(void *arg)
{
	(void)arg;
	sched_yield();
}

static void *watch_on(void *arg)
{
	const struct standin *s = arg;
	long wrong = 0;

	for (int i = 0; i < WATCHES; i++) {
		struct export e;

		export_with(&e, s, yield, NULL, EXPORT(NEW));
		wrong += e.rc || e.plan.calls != 1 || !saw(&e.w, NEW);
	}
	return (void *)wrong;
}

static void test_threads(int how)
{
	const char *name = names[how];
	struct standin s = load(how);
	pthread_t watcher[WATCHERS];
	long wrong = 0, missed = 0;
	struct export e;
	ioctl_fn first;

	call(&s, -1, 0, NULL);	/* a lazy slot is bound from here on */
	first = atomic_load(s.slot);
	stop = false;
	sem_init(&called, 0, 0);
	for (int i = 0; i < CALLERS; i++)
		caller_init(&callers[i], s, i + 1);
	export_with(&e, &s, start_callers, NULL, 0);
	tap_ok(&tap, !e.rc && saw_nothing(&e.w), "%s: requests of 64 other threads are not noted", name);
	for (int i = 0; i < WATCHERS; i++) {
		if (pthread_create(&watcher[i], NULL, watch_on, &s))
			exit(2);
	}
	for (int i = 0; i < WATCHERS; i++) {
		void *n;

		pthread_join(watcher[i], &n);
		missed += (long)n;
	}
	stop = true;
	for (int i = 0; i < CALLERS; i++) {
		pthread_join(caller_thread[i], NULL);
		wrong += callers[i].wrong;
		caller_end(&callers[i]);
	}
	tap_is(&tap, missed, 0, "threads: exports seen wrongly");
	tap_is(&tap, wrong, 0, "threads: calls with a wrong result or errno");
	tap_ok(&tap, atomic_load(s.slot) == first, "%s: the slot is as before the threads", name);
}

/* A thread that takes its turn in the middle of a watch. */
struct turn {
	sem_t begin, end;
	struct standin s;
	pid_t child;
	int result;
};

static void give_turn(void *arg)
{
	struct turn *t = arg;

	sem_post(&t->begin);
	sem_wait(&t->end);
}

static int in_child(const struct turn *t)
{
	ioctl_fn was = atomic_load(t->s.slot);
	struct caller c;

	caller_init(&c, t->s, 17);
	for (int i = 0; i < 10; i++)
		call_once(&c);
	if (c.wrong)
		return 1;
	for (int i = 0; i < 3; i++)
		if (!sees(&t->s))
			return 2;
	call_once(&c);
	if (c.wrong)
		return 3;
	return atomic_load(t->s.slot) == was ? 0 : 4;
}

static void *fork_now(void *arg)
{
	struct turn *t = arg;

	sem_wait(&t->begin);
	t->child = fork();
	if (!t->child)
		_exit(in_child(t));
	sem_post(&t->end);
	return NULL;
}

static void test_fork(int how)
{
	const char *name = names[how];
	struct turn t = { .s = load(how), .child = -1 };
	ioctl_fn first = atomic_load(t.s.slot);
	struct export e;
	pthread_t thread;
	int status = -1;

	sem_init(&t.begin, 0, 0);
	sem_init(&t.end, 0, 0);
	pthread_create(&thread, NULL, fork_now, &t);
	export_with(&e, &t.s, give_turn, &t, EXPORT(OLD));
	tap_ok(&tap, !e.rc && saw(&e.w, OLD), "%s fork: the parent's request is seen", name);
	pthread_join(thread, NULL);
	tap_ok(&tap, atomic_load(t.s.slot) == first, "%s fork: the parent's slot is as it was", name);
	tap_ok(&tap, t.child > 0 && waitpid(t.child, &status, 0) == t.child, "%s fork: a child in the middle of a watch", name);
	tap_ok(&tap, WIFEXITED(status) && !WEXITSTATUS(status),
	       "%s fork: the child calls through, and watches", name);
	if (status)
		printf("# wait status %#x\n", status);
}

int main(void)
{
	alarm(300);	/* ends a test in which a thread waits for ever */
	null_fd = open("/dev/null", O_RDWR | O_CLOEXEC);
	test_first("a tool was there before the first watch", tool_at_first);
	test_first("a tool attaches later", tool_later);
	test_first("a tool attaches meanwhile", tool_meanwhile);
	test_lazy();
	test_requests();
	test_export();
	test_relro();
	test_another();
	test_protected();
	test_refused();
	test_left();
	test_fork(RELRO);
	test_threads(LAZY);
	test_threads(RELRO);
	test_changed_meanwhile(LAZY);
	test_changed_meanwhile(RELRO);
	return tap_done(&tap);
}
