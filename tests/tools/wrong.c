// SPDX-License-Identifier: MIT
/*
 * wrong.c - a preload for gdrcopy_sanity that answers its calls of libgdrapi wrongly, to
 * see which case notices. sanity.py reads what it writes.
 *
 * A call is known by where it stands in the program (a site), by its case, and by how many
 * forks of the case led to the process that makes it (the depth). The probe is case 0.
 *
 *	WRONG_LOG	a file. It gets a line for each first call of a site:
 *			"call CASE DEPTH SITE FUNCTION", "bad" for the first that fails,
 *			"good" for the first that does not, "bad_out" and "good_out" for the
 *			first of these with an out-parameter, "bad_second" and "good_second"
 *			with a second one, "moved" for the first copy that moves bytes, and
 *			"hit" for the first answer that is spoiled here.
 *	WRONG_HOW	how the answers of the sites in WRONG_SITES are spoiled:
 *		error	the first is EIO, and NULL for gdr_open
 *		success	the first that is an error is 0, and no NULL for gdr_open
 *		keep	the first without an error leaves its out-parameter as it was
 *		scribble the first that is an error writes its out-parameter
 *		keep_second, scribble_second  the same for the second out-parameter
 *		first, last  copies have that byte wrong
 *			With the lie "tell:args" each call gets "args CASE DEPTH FUNCTION ARGUMENTS".
 *	WRONG_SITES	a file of "CASE DEPTH SITE" lines
 *	WRONG_LIE	what the library does wrongly in all calls, with commas between; see lie()
 *	WRONG_CASE	the only case that WRONG_LIE is for
 *	WRONG_CUDA	CUDA_SIM_FAIL of the cases; the probe has none
 *	WRONG_FORK	the fork of the runner, from 1, that fails
 *	WRONG_WAIT	if it is set, a signal interrupts each wait for a child once
 */
#define _GNU_SOURCE 1
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <link.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "gdrapi.h"
#include "gdrapi_ext.h"

#undef gdr_get_info
#define OLD_INFO 40	/* bytes that the function behind the macro fills */

enum { SITES = 256, PINS = 1024, OPENS = 64 };

/* Set by the constructor. They do not change later. */
static const char *how, *lies;
static int only_case = -1, log_fd = -1;
static uintptr_t program, program_end;
static struct where { int number, depth; uintptr_t site; } plan[SITES];
static size_t planned;

/* Of this process. */
static struct { pid_t runner; int forks, number, depth; } now = { .number = -1 };

static struct site {
	_Atomic uintptr_t at;	/* 0: free */
	atomic_bool good, bad, out[2][2], moved, hit;
	bool chosen;
} sites[SITES];

/* What is pinned, and where it is mapped. */
static struct pin {
	gdr_t g;
	gdr_mh_t mh;
	unsigned long addr;
	char *va;
	size_t size;
	int depth;	/* of the process that pinned it */
} pins[PINS];
static pthread_mutex_t pins_lock = PTHREAD_MUTEX_INITIALIZER;
static atomic_int opens;
static unsigned long guards;	/* that the case made */

/* Each gdr_t that was opened, and in which depth. */
static struct opened { gdr_t g; int depth; bool closed; } opened[OPENS];
static atomic_int opened_n;

static struct pin *pin_of(gdr_mh_t mh)
{
	for (struct pin *p = pins; p < pins + PINS; p++)
		if (p->mh.h == mh.h)
			return p;
	return NULL;
}

/* What WRONG_LIE has behind that name; NULL if it has not the name. */
static const char *told(const char *name)
{
	size_t n = strlen(name);

	for (const char *p = lies; p && *p; p += *p == ',') {
		if (!strncmp(p, name, n) && strchr(",=", p[n]))
			return p + n;
		p += strcspn(p, ",");
	}
	return NULL;
}

/* Whether the library lies so in this process: to the probe only what is for the probe. */
static bool lie(const char *name)
{
	bool for_probe = !strncmp(name, "probe:", 6);

	return (only_case < 0 ? for_probe == (now.number == 0) : now.number == only_case) && now.number >= 0 && told(name);
}

/* The number behind a lie of that name; 0 if there is none. */
static unsigned long lie_of(const char *name)
{
	const char *p = now.number > 0 ? told(name) : NULL;

	return p && *p == '=' ? strtoul(p + 1, NULL, 10) : 0;
}

__attribute__((format(printf, 1, 2)))
static void say(const char *fmt, ...)
{
	char line[200];
	va_list ap;
	int n;

	if (log_fd < 0)
		return;
	va_start(ap, fmt);
	n = vsnprintf(line, sizeof(line), fmt, ap);
	va_end(ap);
	if (write(log_fd, line, (size_t)n) != n)
		abort();
}

static int see_program(struct dl_phdr_info *info, size_t size, void *arg)
{
	(void)size, (void)arg;
	program = info->dlpi_addr;
	for (int i = 0; i < info->dlpi_phnum; i++)
		if (info->dlpi_phdr[i].p_type == PT_LOAD)
			program_end = program + info->dlpi_phdr[i].p_vaddr + info->dlpi_phdr[i].p_memsz;
	return 1;	/* the program is the first object */
}

static void before_fork(void)
{
	if (getpid() == now.runner)
		now.forks++;
}

static void in_parent(void)
{
	if (lie("fork:unmaps"))
		for (struct pin *p = pins; p < pins + PINS; p++)
			if (p->va)
				munmap(p->va, p->size);
}

/* The page of a mapping that has its byte at stays although the mapping is gone. It can be read. */
static void leave_page(const struct pin *p, size_t at)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);

	if (p->va && mmap(p->va + at / page * page, page, PROT_READ,
			  MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) == MAP_FAILED)
		abort();
}

static void leave_some(const struct pin *p, const char *first, const char *last)
{
	if (lie(first))
		leave_page(p, 0);
	else if (lie(last))
		leave_page(p, p->size - 1);
}

static void in_child(void)
{
	if (now.number < 0)
		now.number = now.forks - 1;
	else
		now.depth++;
	memset(sites, 0, sizeof(sites));
	for (struct pin *p = pins; p < pins + PINS; p++)
		leave_some(p, "fork:first", "fork:last");
	if (now.number > 0 && getenv("WRONG_CUDA"))
		setenv("CUDA_SIM_FAIL", getenv("WRONG_CUDA"), 1);
}

__attribute__((constructor)) static void begin(void)
{
	const char *path = getenv("WRONG_SITES"), *number = getenv("WRONG_CASE"), *log = getenv("WRONG_LOG");
	struct where *w = plan;
	FILE *f;

	how = getenv("WRONG_HOW");
	lies = getenv("WRONG_LIE");
	log_fd = log ? open(log, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600) : -1;
	only_case = number ? atoi(number) : -1;
	now.runner = getpid();
	dl_iterate_phdr(see_program, NULL);
	pthread_atfork(before_fork, in_parent, in_child);
	f = path ? fopen(path, "re") : NULL;
	while (f && w < plan + SITES && fscanf(f, "%d %d %lx", &w->number, &w->depth, &w->site) == 3)
		w++;
	if (f)
		fclose(f);
	planned = (size_t)(w - plan);
}

/* What a case that ends by exit leaves behind. */
__attribute__((destructor)) static void end(void)
{
	unsigned long (*live)(void) = NULL;
	void *cuda = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD), *f;
	int n = 0;

	if (now.number < 0)
		return;
	f = cuda ? dlsym(cuda, "cuda_sim_live") : NULL;
	memcpy(&live, &f, sizeof(live));
	for (struct pin *p = pins; p < pins + PINS; p++)
		n += p->mh.h != 0;
	say("left %d %d pins=%d opens=%d cuda=%lu\n", now.number, now.depth, n, opens, live ? live() : 0);
}

/* A call in progress. */
struct call {
	const char *name;
	struct site *site;	/* NULL: the caller is not the program, or there is no room */
	int rc;			/* the library's answer */
};

static struct site *find_site(uintptr_t at, bool *fresh)
{
	uintptr_t none;

	for (struct site *s = sites; s < sites + SITES; s++) {
		none = 0;
		if (s->at == at)
			return s;
		if (s->at || (!atomic_compare_exchange_strong(&s->at, &none, at) && none != at))
			continue;
		for (struct where *w = plan; !none && w < plan + planned; w++)
			s->chosen = s->chosen || (w->number == now.number && w->depth == now.depth && w->site == at);
		*fresh = !none;
		return s;
	}
	return NULL;
}

static void end_here(void)
{
	if (lie("end:crash"))
		raise(SIGSEGV);
	if (lie("end:stuck"))
		raise(SIGALRM);
	if (now.depth && lie("child:crash"))
		raise(SIGSEGV);
	if (lie("end:0") || lie("end:1") || lie("end:2") || lie("end:77"))
		_exit(atoi(strchr(lies, ':') + 1));
}

static struct call start(const char *name, void *from)
{
	struct call c = { .name = name };
	uintptr_t at = (uintptr_t)from - program;
	bool fresh = false;

	if ((uintptr_t)from < program || (uintptr_t)from >= program_end || now.number < 0)
		return c;
	end_here();
	c.site = find_site(at, &fresh);
	if (fresh)
		say("call %d %d %lx %s\n", now.number, now.depth, at, name);
	if (fresh && lie("tell:alarm")) {
		unsigned left = alarm(0);

		alarm(left);
		say("alarm %d %d %u\n", now.number, now.depth, left);
	}
	return c;
}

static void once(struct call *c, atomic_bool *flag, const char *what)
{
	if (c->site && !atomic_exchange(flag, true))
		say("%s %d %d %lx %s\n", what, now.number, now.depth, (unsigned long)c->site->at, c->name);
}

static bool spoils(struct call *c, const char *kind)
{
	return c->site && c->site->chosen && how && !strcmp(how, kind);
}

/* The same, but only for the first such answer. */
static bool spoils_once(struct call *c, const char *kind)
{
	if (!spoils(c, kind) || atomic_exchange(&c->site->hit, true))
		return false;
	say("hit %d %d %lx %s\n", now.number, now.depth, (unsigned long)c->site->at, c->name);
	return true;
}

/* What the program is told. */
static int answer(struct call *c, int rc)
{
	c->rc = rc;
	if (!c->site)
		return rc;
	once(c, rc ? &c->site->bad : &c->site->good, rc ? "bad" : "good");
	if (spoils_once(c, "error"))
		return EIO;
	if (rc && spoils_once(c, "success"))
		return 0;
	return rc;
}

/* Hands over an out-parameter of n bytes; second is 0 or 1. */
static void give_one(struct call *c, int second, void *out, const void *got, size_t n)
{
	static const char *const said[2][2] = { { "good_out", "bad_out" }, { "good_second", "bad_second" } };
	static const char *const kinds[2][2] = { { "keep", "scribble" }, { "keep_second", "scribble_second" } };
	int failed = c->rc != 0;

	if (!out)
		return;
	if (c->site)
		once(c, &c->site->out[second][failed], said[second][failed]);
	if (!spoils_once(c, kinds[second][failed]))
		memcpy(out, got, n);
	else if (failed)
		memset(out, 0x5c, n);
}

static void give(struct call *c, void *out, const void *got, size_t n)
{
	give_one(c, 0, out, got, n);
}

static void *real(const char *name)
{
	void *f = dlsym(RTLD_NEXT, name);

	if (!f)
		abort();
	return f;
}

/* The library's function of the same name. ISO C has no cast from an object pointer. */
#define REAL(name)						\
	static __typeof__(name) *next;				\
	struct call c = start(#name, __builtin_return_address(0)); \
	do {							\
		if (!next) {					\
			void *f_ = real(#name);			\
								\
			memcpy(&next, &f_, sizeof(next));	\
		}						\
	} while (0)

#define WRONG_NUMBER 77u

/* With the lie "pin:number" all handles have one number, which names the last of them. */
static gdr_mh_t last_pin;

static gdr_mh_t true_handle(gdr_mh_t mh)
{
	return lie("pin:number") && mh.h == WRONG_NUMBER ? last_pin : mh;
}

static void open_null(int flags)
{
	if (open("/dev/null", O_RDONLY | flags) < 0)
		abort();
}

/* Makes call name a function of libcuda, which is loaded. */
#define CUDA(name)									\
	do {										\
		void *f_ = dlsym(dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD), #name); \
											\
		if (!f_)								\
			abort();							\
		memcpy(&(name), &f_, sizeof(name));					\
	} while (0)

/* What "tell:args" has of an argument. What differs from run to run is not in it. */
__attribute__((format(printf, 1, 2)))
static const char *text(const char *fmt, ...)
{
	static _Thread_local char texts[8][32];
	static _Thread_local int i;
	char *t = texts[i++ % 8];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(t, sizeof(texts[0]), fmt, ap);
	va_end(ap);
	return t;
}

static const char *pointer_text(const void *p)
{
	return p ? "p" : "NULL";
}

static const char *gdr_text(gdr_t g)
{
	for (int i = opened_n; i-- > 0;)
		if (opened[i].g == g)
			return opened[i].closed ? "closed" : opened[i].depth == now.depth ? "g" : "parent's";
	return g ? "none" : "NULL";
}

static const char *handle_text(gdr_mh_t mh)
{
	struct pin *p = mh.h ? pin_of(mh) : NULL;

	if (p)
		return p->depth == now.depth ? "h" : "parent's";
	return mh.h < 100 ? text("%lu", mh.h) : "old";
}

static const char *mem_text(gdr_mem_t mem)
{
	return mem.h < 100 ? text("%lu", mem.h) : "m";
}

/* An address in GPU memory is told from the first GPU page of its allocation. */
static const char *addr_text(unsigned long addr)
{
	int (*cuMemGetAddressRange_v2)(unsigned long *, size_t *, unsigned long);
	unsigned long base = 0;
	size_t size;

	if ((long)addr < 1l << 32)
		return text("%ld", (long)addr);
	if (!dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD))
		return "p";
	CUDA(cuMemGetAddressRange_v2);
	if (cuMemGetAddressRange_v2(&base, &size, addr))
		return "p";
	return text("+%ld", (long)(addr - (base + GPU_PAGE_SIZE - 1) / GPU_PAGE_SIZE * GPU_PAGE_SIZE));
}

/* A size that depends on the address is told by where it ends. */
static const char *size_text(unsigned long addr, size_t size)
{
	return addr + size < size && (long)size < -(1l << 32) ? text("to %ld", (long)(addr + size)) : text("%ld", (long)size);
}

/* An address in a mapping is told from the mapping's first byte. */
static const char *place_text(gdr_mh_t mh, const void *at)
{
	struct pin *p = mh.h ? pin_of(mh) : NULL;
	long off = p && p->va ? (long)at - (long)p->va : LONG_MIN;

	return off >= -1 && off <= (long)(p->size + GPU_PAGE_SIZE) ? text("%+ld", off) : pointer_text(at);
}

#define TELL(fmt, ...) do {						\
		if (c.site && lie("tell:args"))				\
			say("args %d %d %s " fmt "\n", now.number, now.depth, c.name, __VA_ARGS__); \
	} while (0)

gdr_t gdr_open(void)
{
	static gdr_t first;
	gdr_t g;
	int e;

	REAL(gdr_open);
	TELL("%s", "");
	if (lie("open:once") && first)
		return first;
	if (lie("open:any"))
		unsetenv("GDRCOPY_BACKEND");
	g = next();
	e = errno;
	first = first ? first : g;
	opens += g != NULL;
	if (g && opened_n < OPENS)
		opened[opened_n++] = (struct opened){ .g = g, .depth = now.depth };
	if (lie("open:descriptor"))
		open_null(O_CLOEXEC);
	if (answer(&c, g ? 0 : EINVAL))
		g = NULL;
	else if (!g)
		g = (gdr_t)&opens;
	errno = lie("open:errno") ? EIO : e;
	return g;
}

int gdr_close(gdr_t g)
{
	int rc;

	REAL(gdr_close);
	TELL("%s", gdr_text(g));
	if (lie("close:nothing"))
		return answer(&c, 0);
	rc = next(g);
	opens -= !rc;
	for (int i = 0; i < opened_n && !rc; i++)
		opened[i].closed = opened[i].closed || opened[i].g == g;
	pthread_mutex_lock(&pins_lock);
	for (struct pin *p = pins; p < pins + PINS; p++)
		if (!rc && p->mh.h && p->g == g) {
			leave_some(p, "close:first", "close:last");
			memset(p, 0, sizeof(*p));
		}
	pthread_mutex_unlock(&pins_lock);
	if (lie("close:descriptor"))
		open_null(O_CLOEXEC);
	return answer(&c, rc);
}

static void set_ctx(void *ctx)
{
	int (*cuCtxSetCurrent)(void *);

	CUDA(cuCtxSetCurrent);
	cuCtxSetCurrent(ctx);
}

static void *primary_ctx(void)
{
	int (*cuDevicePrimaryCtxRetain)(void **, int);
	void *ctx = NULL;

	CUDA(cuDevicePrimaryCtxRetain);
	cuDevicePrimaryCtxRetain(&ctx, 0);
	return ctx;
}

static void clear_sync_memops(unsigned long addr)
{
	enum { SYNC_MEMOPS = 6 };
	int (*cuPointerSetAttribute)(const void *, int, unsigned long long);
	int zero = 0;

	CUDA(cuPointerSetAttribute);
	cuPointerSetAttribute(&zero, SYNC_MEMOPS, addr);
}

static int gpu_of(unsigned long addr)
{
	enum { DEVICE_ORDINAL = 9 };
	int (*cuPointerGetAttribute)(void *, int, unsigned long long);
	int gpu = -1;

	CUDA(cuPointerGetAttribute);
	cuPointerGetAttribute(&gpu, DEVICE_ORDINAL, addr);
	return gpu;
}

static unsigned long last_addr;	/* the address of the last pin that succeeded */

/* What a pin that succeeded does besides. */
static void pinned(gdr_t g, unsigned long addr, gdr_mh_t *mh)
{
	struct pin *p;

	pthread_mutex_lock(&pins_lock);
	p = pin_of((gdr_mh_t){ 0 });
	if (p)
		*p = (struct pin){ .g = g, .mh = *mh, .addr = addr, .depth = now.depth };
	last_addr = addr;
	pthread_mutex_unlock(&pins_lock);
	if (lie("pin:descriptor"))
		open_null(O_CLOEXEC);
	if (lie("pin:inherited"))
		open_null(0);
	if (lie("pin:context"))
		set_ctx(primary_ctx());
	if (lie("tell:gpu"))
		say("gpu %d %d %d\n", now.number, now.depth, gpu_of(addr));
	if (lie("pin:late"))
		clear_sync_memops(addr);
	if (lie("pin:number")) {
		last_pin = *mh;
		mh->h = WRONG_NUMBER;
	}
}

/* The address that is pinned in place of addr. */
static unsigned long moved(unsigned long addr)
{
	return lie("pin:shifted") ? addr + 4096 : addr;
}

int gdr_pin_buffer(gdr_t g, unsigned long addr, size_t size, uint64_t token, uint32_t space, gdr_mh_t *out)
{
	gdr_mh_t mh = out ? *out : (gdr_mh_t){ 0 };
	int rc;

	REAL(gdr_pin_buffer);
	TELL("%s %s %s %lu %u %s", gdr_text(g), addr_text(addr), size_text(addr, size), token, space, pointer_text(out));
	rc = next(g, addr, size, token, space, out ? &mh : NULL);
	if (rc == EINVAL && g && out && addr == last_addr && lie("pin:freed"))
		rc = 0;
	else if (!rc)
		pinned(g, addr, &mh);
	rc = answer(&c, rc);
	give(&c, out, &mh, sizeof(mh));
	return rc;
}

int gdr_pin_buffer_v2(gdr_t g, unsigned long addr, size_t size, uint32_t flags, gdr_mh_t *out)
{
	gdr_mh_t mh = out ? *out : (gdr_mh_t){ 0 };
	int rc = 0;

	REAL(gdr_pin_buffer_v2);
	TELL("%s %s %s %#x %s", gdr_text(g), addr_text(addr), size_text(addr, size), flags, pointer_text(out));
	if (lie("pin:emfile"))
		return answer(&c, EMFILE);
	if (lie("pin:shared"))
		for (struct pin *p = pins; p < pins + PINS && out && addr; p++)
			if (p->mh.h && p->g == g && p->addr == addr) {
				*out = p->mh;
				return answer(&c, 0);
			}
	rc = next(g, moved(addr), size, flags, out ? &mh : NULL);
	if (rc && moved(addr) != addr)
		rc = next(g, addr, size, flags, out ? &mh : NULL);
	if (!rc)
		pinned(g, addr, &mh);
	rc = answer(&c, rc);
	give(&c, out, &mh, sizeof(mh));
	return rc;
}

int gdr_unpin_buffer(gdr_t g, gdr_mh_t mh)
{
	struct pin *p;
	int rc;

	REAL(gdr_unpin_buffer);
	if (c.site && lie("late:segv"))
		raise(SIGSEGV);
	if (c.site && lie("late:bus"))
		raise(SIGBUS);
	TELL("%s %s", gdr_text(g), handle_text(mh));
	mh = true_handle(mh);
	rc = next(g, mh);
	pthread_mutex_lock(&pins_lock);
	p = rc || !mh.h ? NULL : pin_of(mh);
	if (p) {
		leave_some(p, "unpin:first", "unpin:last");
		memset(p, 0, sizeof(*p));
	}
	for (p = pins; !rc && lie("unpin:spoils") && p < pins + PINS; p++)
		if (p->va)
			p->va[5]++;
	pthread_mutex_unlock(&pins_lock);
	return answer(&c, rc);
}

static int mapped(gdr_mh_t mh, char **va, size_t size)
{
	static char *first;
	struct pin *p;

	pthread_mutex_lock(&pins_lock);
	p = pin_of(mh);
	if (p) {
		p->va = *va;
		p->size = size;
	}
	pthread_mutex_unlock(&pins_lock);
	if (lie("map:read_only"))
		return mprotect(*va, size, PROT_READ);
	if (lie("map:inherited"))
		return madvise(*va, size, MADV_DOFORK);
	if (lie("map:empty"))
		**va = 0;
	if (lie("map:odd"))
		*va += 64;
	if (lie("map:first")) {
		first = first ? first : *va;
		*va = first;
	}
	return 0;
}

int gdr_map(gdr_t g, gdr_mh_t mh, void **out, size_t size)
{
	char *va = out ? *out : NULL;
	int rc;

	REAL(gdr_map);
	TELL("%s %s %s %ld", gdr_text(g), handle_text(mh), pointer_text(out), (long)size);
	mh = true_handle(mh);
	rc = next(g, mh, out ? (void **)&va : NULL, size);
	if (!rc && mapped(mh, &va, size))
		abort();
	rc = answer(&c, rc);
	give(&c, out, &va, sizeof(va));
	return rc;
}

int gdr_map_v2(gdr_t g, gdr_mh_t mh, void **out, size_t size, int flags)
{
	char *va = out ? *out : NULL;
	int rc;

	REAL(gdr_map_v2);
	TELL("%s %s %s %ld %d", gdr_text(g), handle_text(mh), pointer_text(out), (long)size, flags);
	mh = true_handle(mh);
	rc = lie("map:refused") ? EINVAL : next(g, mh, out ? (void **)&va : NULL, size, flags);
	if (!rc && mapped(mh, &va, size))
		abort();
	if (rc == EAGAIN && lie("map:drops"))
		munmap(pin_of(mh)->va, pin_of(mh)->size);
	if (rc == EINVAL && flags > 0 && (lie("map:eio") || lie("map:eopnotsupp")))
		rc = lie("map:eio") ? EIO : EOPNOTSUPP;
	rc = answer(&c, rc);
	give(&c, out, &va, sizeof(va));
	return rc;
}

int gdr_unmap(gdr_t g, gdr_mh_t mh, void *va, size_t size)
{
	struct pin *p;
	int rc;

	REAL(gdr_unmap);
	TELL("%s %s %s %ld", gdr_text(g), handle_text(mh), place_text(mh, va), (long)size);
	mh = true_handle(mh);
	if (lie("unmap:nothing"))
		return answer(&c, 0);
	rc = next(g, mh, va, size);
	pthread_mutex_lock(&pins_lock);
	p = mh.h ? pin_of(mh) : NULL;
	if (p && !rc) {
		leave_some(p, "unmap:first", "unmap:last");
		if ((size < p->size && lie("unmap:part")) || (va != p->va && lie("unmap:other")))
			leave_page(p, 0);
		p->va = NULL;
	} else if (p && p->va && lie("unmap:refused")) {
		munmap(p->va, p->size);
	} else if (p && p->va && lie("unmap:end")) {
		munmap(p->va + p->size - 4096, 4096);
	}
	pthread_mutex_unlock(&pins_lock);
	return answer(&c, rc);
}

/* Whether the lies about copies in one direction are about this copy. */
static bool copy_lie(const char *way, const void *gpu, const void *host, size_t size)
{
	char name[32];
	bool hit = false;

	if (!lies || !strstr(lies, way))
		return false;
#define LIE(what, about) do {								\
		snprintf(name, sizeof(name), "%s" what, way);				\
		hit = hit || (about);							\
	} while (0)
	LIE(":size", lie_of(name) == size);
	LIE(":gpu", lie_of(name) == (uintptr_t)gpu % 64 + 1);
	LIE(":host", lie_of(name) == (uintptr_t)host % 64 + 1);
	LIE(":size*64+host", lie_of(name) == size * 64 + (uintptr_t)host % 64);
	LIE(":above", lie_of(name) && size >= lie_of(name));
#undef LIE
	return hit;
}

/* Where the copies' lies about a byte in the middle put it: before the last border of pages. */
static size_t before_border(const void *gpu, size_t size)
{
	uintptr_t end = ((uintptr_t)gpu + size - 1) / 4096 * 4096;

	return end > (uintptr_t)gpu ? end - (uintptr_t)gpu - 1 : 0;
}

static void flip(void *p)
{
	*(volatile uint8_t *)p ^= 0x10;
}

static void flip_all(uint8_t *p, size_t size)
{
	while (size--)
		p[size] = (uint8_t)~p[size];
}

/* The bytes of the last copy from there; the same again for the next one of its size. */
static void stale(const void *gpu, uint8_t *host, size_t size)
{
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	static struct { const void *gpu; size_t size; uint8_t bytes[1 << 18]; } last;

	if (size > sizeof(last.bytes))
		return;
	pthread_mutex_lock(&lock);
	if (last.gpu == gpu && last.size == size) {
		memcpy(host, last.bytes, size);
	} else {
		last.gpu = gpu;
		last.size = size;
		memcpy(last.bytes, host, size);
	}
	pthread_mutex_unlock(&lock);
}

static void *real_alloc(size_t size)
{
	void *p = malloc(size);

	if (!p)
		abort();
	return p;
}

/* Whether the library takes such a copy: nothing else is read here. */
static bool takes(gdr_mh_t mh, const char *gpu, const void *host, size_t size)
{
	struct pin *p = pin_of(mh);

	size_t room = p ? (p->size + 4095) / 4096 * 4096 : 0;

	return p && p->va && host && gpu >= p->va && size <= room && gpu - p->va <= (ptrdiff_t)(room - size);
}

int gdr_copy_to_mapping(gdr_mh_t mh, void *gpu, const void *host, size_t size)
{
	size_t at = SIZE_MAX;
	uint8_t *bad, *g = gpu;
	int rc;

	REAL(gdr_copy_to_mapping);
	TELL("%s %s %s %ld", handle_text(mh), place_text(mh, gpu), pointer_text(host), (long)size);
	mh = true_handle(mh);
	if (lie("to:nothing") || (size && lie_of("to:skips") == size))
		return answer(&c, 0);
	if (size && spoils(&c, "first"))
		at = 0;
	if (size && (spoils(&c, "last") || copy_lie("to", gpu, host, size)))
		at = size - 1;
	if (size && lie("to:border"))
		at = before_border(gpu, size);
	if (at < size && takes(mh, gpu, host, size)) {
		flip((bad = memcpy(real_alloc(size), host, size)) + at);
		rc = next(mh, gpu, bad, size);
		free(bad);
		if (how)
			spoils_once(&c, how);
		return answer(&c, rc);
	}
	if (size && lie("copies:flipped") && takes(mh, gpu, host, size)) {
		flip_all(bad = memcpy(real_alloc(size), host, size), size);
		rc = next(mh, gpu, bad, size);
		free(bad);
		return answer(&c, rc);
	}
	rc = next(mh, gpu, host, size);
	if (!rc && size && c.site)
		once(&c, &c.site->moved, "moved");
	if (!rc && !size && lie("to:empty") && pin_of(mh) && pin_of(mh)->va)
		*pin_of(mh)->va = 0x77;
	if (!rc && size && (lie("to:before") || lie("to:behind"))) {
		uint8_t *other = lie("to:before") ? g - 1 : g + size, byte;

		if (!next(mh, other, host, 1) && !gdr_copy_from_mapping(mh, &byte, other, 1)) {
			byte = (uint8_t)~byte;
			next(mh, other, &byte, 1);
		}
	}
	if (!rc && size && lie("to:reads"))
		(void)((volatile const uint8_t *)host)[size];
	if (!rc && size && lie("to:reads_before"))
		(void)((volatile const uint8_t *)host)[-1];
	if (!rc && size && lie("to:host"))
		flip((uint8_t *)(uintptr_t)host);
	return answer(&c, rc);
}

int gdr_copy_from_mapping(gdr_mh_t mh, void *host, const void *gpu, size_t size)
{
	uint8_t *h = host;
	int rc;

	REAL(gdr_copy_from_mapping);
	TELL("%s %s %s %ld", handle_text(mh), pointer_text(host), place_text(mh, gpu), (long)size);
	mh = true_handle(mh);
	if (lie("from:nothing"))
		return answer(&c, 0);
	rc = next(mh, host, gpu, size);
	if (!rc && size && c.site)
		once(&c, &c.site->moved, "moved");
	if (!rc && host && !size && lie("from:empty"))
		flip(h);
	if (rc && host && size && size <= 8 && lie("from:scribbles"))
		memset(h, 0x5c, size);
	if (rc || !size)
		return answer(&c, rc);
	if (lie("copies:flipped"))
		flip_all(h, size);
	if (lie("from:stale"))
		stale(gpu, h, size);
	if (spoils(&c, "first")) {
		flip(h);
		spoils_once(&c, "first");
	}
	if (spoils(&c, "last")) {
		flip(h + size - 1);
		spoils_once(&c, "last");
	}
	if (copy_lie("from", gpu, host, size))
		flip(h + size - 1);
	if (lie("from:border"))
		flip(h + before_border(gpu, size));
	if (lie("from:before"))
		flip(h - 1);
	if (lie("from:behind"))
		flip(h + size);
	if (lie("from:writes"))
		flip((uint8_t *)(uintptr_t)gpu);
	return answer(&c, rc);
}

/* Whether there is such a lie about any mapping, or about one in that state. */
static bool info_lie(const char *which, const char *state, const char *field)
{
	char any[32], some[32];

	snprintf(any, sizeof(any), "%s:%s", which, field);
	snprintf(some, sizeof(some), "%s:%s:%s", which, state, field);
	return lie(any) || lie(some);
}

static void wrong_info(gdr_info_v2_t *i, const char *which, const struct pin *p)
{
	const char *state = i->mapped ? "mapped" : p && p->size ? "unmapped" : "new";
	const gdr_mapping_type_t other = i->mapping_type == GDR_MAPPING_TYPE_CACHING ? GDR_MAPPING_TYPE_DEVICE : GDR_MAPPING_TYPE_CACHING;

#define LIE(field, change) do {				\
		if (info_lie(which, state, field))	\
			change;				\
	} while (0)
	LIE("va", i->va += 4096);
	LIE("size", i->mapped_size += 4096);
	LIE("page", i->page_size *= 2);
	LIE("tm", i->tm_cycles += 9);
	LIE("rate", i->cycles_per_ms += 9);
	LIE("is", i->mapped = !i->mapped);
	LIE("wc", i->wc_mapping = !i->wc_mapping);
	LIE("none", i->mapping_type = GDR_MAPPING_TYPE_NONE);
	LIE("type", i->mapping_type = other);
	LIE("max", i->mapping_type = GDR_MAPPING_TYPE_MAX);
#undef LIE
}

int gdr_get_info_v2(gdr_t g, gdr_mh_t mh, gdr_info_v2_t *out)
{
	gdr_info_v2_t info;
	int rc;

	REAL(gdr_get_info_v2);
	TELL("%s %s %s", gdr_text(g), handle_text(mh), pointer_text(out));
	mh = true_handle(mh);
	if (out)
		memcpy(&info, out, sizeof(info));
	rc = next(g, mh, out ? &info : NULL);
	if (!rc) {
		struct pin *p = pin_of(mh);

		if (lie("pin:shifted") && p)
			info.va = p->addr;
		wrong_info(&info, "info", p);
	}
	rc = answer(&c, rc);
	give(&c, out, &info, sizeof(info));
	if (!rc && lie("info:long"))
		memset((char *)out + sizeof(info), 0, 1);
	if (rc && out && lie("info:tail"))
		memset((char *)out + sizeof(info) - 1, 0, 1);
	return rc;
}

int gdr_get_info(gdr_t g, gdr_mh_t mh, void *out);
int gdr_get_info(gdr_t g, gdr_mh_t mh, void *out)
{
	gdr_info_v2_t info;
	int rc;

	REAL(gdr_get_info);
	TELL("%s %s %s", gdr_text(g), handle_text(mh), pointer_text(out));
	if (out)
		memcpy(&info, out, OLD_INFO);
	rc = next(g, mh, out ? &info : NULL);
	if (!rc)
		wrong_info(&info, "old_info", pin_of(mh));
	rc = answer(&c, rc);
	give(&c, out, &info, OLD_INFO);
	if (!rc && lie("old_info:long"))
		memset((char *)out + OLD_INFO, 0, 1);
	return rc;
}

int gdr_get_callback_flag(gdr_t g, gdr_mh_t mh, int *out)
{
	int flag = out ? *out : 0, rc;

	REAL(gdr_get_callback_flag);
	TELL("%s %s %s", gdr_text(g), handle_text(mh), pointer_text(out));
	mh = true_handle(mh);
	rc = next(g, mh, out ? &flag : NULL);
	if (!rc && lie("flag"))
		flag = !flag;
	if (!rc && lie("flag:unmaps"))
		munmap(pin_of(mh)->va, pin_of(mh)->size);
	rc = answer(&c, rc);
	give(&c, out, &flag, sizeof(flag));
	return rc;
}

int gdr_get_attribute(gdr_t g, gdr_attr_t attr, int *out)
{
	int v = out ? *out : 0, rc;

	REAL(gdr_get_attribute);
	TELL("%s %d %s", gdr_text(g), (int)attr, pointer_text(out));
	rc = next(g, attr, out ? &v : NULL);
	if (!rc && lie_of("attribute") == (unsigned long)attr)
		v = !v;
	if (!rc && (lie("attributes:2") || (lie("probe:persistent") && attr == GDR_ATTR_USE_PERSISTENT_MAPPING) ||
		    (lie("probe:pcie") && attr == GDR_ATTR_SUPPORT_PIN_FLAG_FORCE_PCIE)))
		v = lie("attributes:2") ? 2 : 0;
	if (rc && out && lie("attribute:kept"))
		v = *out;
	rc = answer(&c, rc);
	give(&c, out, &v, sizeof(v));
	return rc;
}

void gdr_runtime_get_version(int *major, int *minor)
{
	int x = -1, y = -1;

	REAL(gdr_runtime_get_version);
	TELL("%s %s", pointer_text(major), pointer_text(minor));
	next(&x, &y);
	if (lie("version:null"))
		*major = x;
	x += lie("version:major") || lie("probe:version");
	y += 2 * lie("version:minor") + 3 * lie("probe:version");
	answer(&c, 0);
	give(&c, major, &x, sizeof(x));
	give_one(&c, 1, minor, &y, sizeof(y));
}

int gdr_driver_get_version(gdr_t g, int *major, int *minor)
{
	int x = major ? *major : 0, y = minor ? *minor : 0, rc;

	REAL(gdr_driver_get_version);
	TELL("%s %s %s", gdr_text(g), pointer_text(major), pointer_text(minor));
	rc = next(g, major ? &x : NULL, minor ? &y : NULL);
	if (!rc) {
		x += lie("driver:major") + 3 * lie("probe:version");
		y += lie("driver:minor") + lie("probe:version");
		if (lie_of("driver")) {
			x = (int)lie_of("driver") / 10;
			y = (int)lie_of("driver") % 10;
		}
	}
	rc = answer(&c, rc);
	give(&c, major, &x, sizeof(x));
	give_one(&c, 1, minor, &y, sizeof(y));
	return rc;
}

int gdr_get_mapping_type_string(gdr_mapping_type_t type, const char **out)
{
	const char *s = out ? *out : NULL;
	int rc;

	REAL(gdr_get_mapping_type_string);
	TELL("%d %s", (int)type, pointer_text(out));
	rc = next(type, out ? &s : NULL);
	if (!rc && lie_of("string") == (unsigned long)type + 1)
		s = "Nonesuch";
	rc = answer(&c, rc);
	give(&c, out, &s, sizeof(s));
	return rc;
}

int gdr_get_backend(gdr_t g, char *name, size_t size)
{
	int rc;

	REAL(gdr_get_backend);
	rc = next(g, name, size);
	if (!rc && lie("probe:gdrdrv"))
		snprintf(name, size, "gdrdrv");
	if (!rc && lie("probe:rm"))
		snprintf(name, size, "rm");
	if (!rc && lie("probe:unknown"))
		snprintf(name, size, "dmabufs");
	return answer(&c, rc);
}

int gdr_mem_alloc(gdr_t g, int gpu, size_t size, unsigned flags, gdr_mem_t *out)
{
	gdr_mem_t mem = out ? *out : (gdr_mem_t){ 0 };
	int rc;

	REAL(gdr_mem_alloc);
	TELL("%s %d %ld %u %s", gdr_text(g), gpu, (long)size, flags, pointer_text(out));
	rc = answer(&c, next(g, gpu, size, flags, out ? &mem : NULL));
	give(&c, out, &mem, sizeof(mem));
	return rc;
}

int gdr_mem_free(gdr_t g, gdr_mem_t mem)
{
	int rc;

	REAL(gdr_mem_free);
	TELL("%s %s", gdr_text(g), mem_text(mem));
	rc = next(g, mem);
	if (lie("mem:context"))
		set_ctx(NULL);
	return answer(&c, rc);
}

int gdr_mem_get_device_ptr(gdr_t g, gdr_mem_t mem, unsigned long *addr_out, size_t *size_out)
{
	unsigned long addr = addr_out ? *addr_out : 0;
	size_t size = size_out ? *size_out : 0;
	int rc;

	REAL(gdr_mem_get_device_ptr);
	TELL("%s %s %s %s", gdr_text(g), mem_text(mem), pointer_text(addr_out), pointer_text(size_out));
	rc = next(g, mem, addr_out ? &addr : NULL, size_out ? &size : NULL);
	if (!rc) {
		addr += 4096 * lie("mem:unaligned");
		size = lie("mem:small") ? 4096 : size - 64 * lie("mem:odd");
		size = lie("mem:tiny") ? 0 : size;
	}
	rc = answer(&c, rc);
	give(&c, addr_out, &addr, sizeof(addr));
	give_one(&c, 1, size_out, &size, sizeof(size));
	return rc;
}

pid_t fork(void)
{
	static pid_t (*next)(void);
	const char *bad = getenv("WRONG_FORK");
	void *f = real("fork");

	memcpy(&next, &f, sizeof(next));
	if ((bad && getpid() == now.runner && atoi(bad) == now.forks + 1) || lie("fork:fails")) {
		errno = EAGAIN;
		now.forks += getpid() == now.runner;
		return -1;
	}
	return next();
}

/* Guards that are none. */
int mprotect(void *p, size_t size, int how_to)
{
	static int (*next)(void *, size_t, int);
	const char *from = __builtin_return_address(0);
	void *f = real("mprotect");

	memcpy(&next, &f, sizeof(next));
	if (now.number > 0 && (uintptr_t)from >= program && (uintptr_t)from < program_end &&
	    lie_of("guard") && ++guards == lie_of("guard"))
		return 0;
	return next(p, size, how_to);
}

int pthread_create(pthread_t *t, const pthread_attr_t *attr, void *(*f)(void *), void *arg)
{
	static int (*next)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
	uintptr_t from = (uintptr_t)__builtin_return_address(0);
	void *p = real("pthread_create");

	memcpy(&next, &p, sizeof(next));
	return from >= program && from < program_end && lie("thread:fails") ? EAGAIN : next(t, attr, f, arg);
}

pid_t waitpid(pid_t pid, int *status, int options)
{
	static pid_t (*next)(pid_t, int *, int), waited;
	void *f = real("waitpid");

	memcpy(&next, &f, sizeof(next));
	if (lie("wait:fails")) {
		errno = ECHILD;
		return -1;
	}
	if (getenv("WRONG_WAIT") && waited != pid) {
		waited = pid;
		errno = EINTR;
		return -1;
	}
	return next(pid, status, options);
}
