// SPDX-License-Identifier: MIT
/*
 * ext/descriptor.c - one descriptor for the CPU and for CUDA: what CUDA imports, what it exports,
 * labels that nobody's library has written, namespaces, another GPU. Runs on the simulated
 * drivers and on a GPU; with --long up to 8 GiB and 10,000 times.
 */
#include "share.h"

#include <sched.h>
#include <sys/ioctl.h>
#include <sys/mount.h>

#include "rm_uapi.h"

#define GPU_PAGES(bytes) ((bytes) / GPU_PAGE_SIZE)

static int (*import_handle)(cu_mem *, void *, int), (*export_handle)(int *, cu_mem, int, unsigned long long);
static int (*memory_info)(size_t *free, size_t *total), (*copy_between)(cu_ptr to, cu_ptr from, size_t size);

static void start(int device)
{
	cu_ctx context = start_current(&cu);
	int dev;

	if (device) {
		expect_is(cu.device_get(&dev, device), 0);
		expect_is(cu.primary_retain(&context, dev), 0);
		expect_is(cu.ctx_set(context), 0);
	}
	import_handle = need_symbol("cuMemImportFromShareableHandle");
	export_handle = need_symbol("cuMemExportToShareableHandle");
	memory_info = need_symbol("cuMemGetInfo_v2");
	copy_between = need_symbol("cuMemcpyDtoD_v2");
}

/* Where a buffer is, as the exporter's gdr_get_object says it. */
struct where {
	uint64_t offset, length, skip, size;
	bool pooled;
};

/* Memory of cuMemCreate, or that CUDA has imported, and where it is mapped for a GPU. */
struct mapped {
	cu_mem mem;
	cu_ptr p;
	size_t length;
};

/* The result of the first call that fails. */
static int map_whole(struct mapped *m, size_t length, int device)
{
	struct cu_access all = { { CU_PLACE_GPU, device }, CU_ACCESS_RW };
	int rc;

	m->length = length;
	expect_is(cu.reserve(&m->p, length, 0, 0, 0), 0);
	rc = cu.map(m->p, length, 0, m->mem, 0);
	if (!rc)
		return cu.set_access(m->p, length, &all, 1);
	expect_is(cu.unreserve(m->p, length), 0);
	expect_is(cu.release(m->mem), 0);
	return rc;
}

static int import_by_cuda(struct mapped *m, int fd, size_t length, int device)
{
	return import_handle(&m->mem, (void *)(intptr_t)fd, CU_EXPORT_FD) ?: map_whole(m, length, device);
}

static void drop_mapped(struct mapped *m)
{
	expect_is(cu.unmap(m->p, m->length), 0);
	expect_is(cu.unreserve(m->p, m->length), 0);
	expect_is(cu.release(m->mem), 0);
}

/* Pins, exports, and sends with its place, which CUDA needs. */
static void send_buffer(int to, cu_ptr addr, size_t size, bool pooled)
{
	struct where w = { .size = size, .pooled = pooled };
	unsigned int count;
	struct shared s;

	fill_by_cuda(addr, size, 1);
	pin_and_export(&s, addr, size);
	expect_is(gdr_get_object(g, s.mh, &w.offset, &w.length, &count), 0);
	w.skip = skip_of(&s);
	expect_is(count, 1);
	expect(w.offset + w.skip + w.size <= w.length);
	expect(send_with(to, &w, sizeof(w), &s.fd, 1));
	close(s.fd);
}

/* Goes on in a child. The parent ends as the child does. */
static void go_on_in_child(void)
{
	pid_t pid = fork();
	int status;

	if (!pid)
		return;
	expect_is(waitpid(pid, &status, 0), pid);
	_exit(WEXITSTATUS(status));
}

/* Runs in processes with the number of their namespace: 1 and so on. It takes root. */
static bool enter_namespaces(int number)
{
	if (unshare(CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWNS))
		return false;
	go_on_in_child();
	expect_is(mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL), 0);
	expect_is(mount("proc", "/proc", "proc", 0, NULL), 0);
	while (getpid() < number)
		go_on_in_child();
	return true;
}

/* All kinds of memory in one object. It waits to be killed. */
static void be_owner(int to, bool apart)
{
	static const size_t sizes[] = { 512, 4096, 65536, 100000, MIB, OBJECT, 3 * MIB, 64 * MIB, 1024 * MIB, 8192 * MIB };
	static const size_t vmm[] = { OBJECT, 2 * OBJECT };
	size_t free, total;
	gdr_mh_t mh;
	cu_ptr p;
	int rc;

	expect(!apart || enter_namespaces(1));
	start(0);
	g = open_or_fail();
	for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
		expect_is(memory_info(&free, &total), 0);
		if (sizes[i] > (guest_long ? free / 2 : 3 * MIB))
			break;
		expect_is(cu.mem_alloc(&p, sizes[i]), 0);
		send_buffer(to, p, sizes[i], false);
	}
	p = make_vmm(&cu, vmm, 2);
	send_buffer(to, p, OBJECT, false);
	send_buffer(to, p + OBJECT + 3 * GPU_PAGE_SIZE, OBJECT, false);
	p = make_pooled(3 * MIB);
	rc = gdr_pin_buffer(g, p, 3 * MIB, 0, 0, &mh);
	if (rc)
		note("memory of a pool is not pinned here: %s", strerror(rc));
	else
		send_buffer(to, p, 3 * MIB, true);
	expect(rc == 0 || rc == ENOTSUP);
	expect(send_with(to, &(struct where){ 0 }, sizeof(struct where), &(int){ 0 }, 1));
	pause();
}

#define MOST 16

/* What the two heirs share: a place to meet. */
static _Atomic int *met;

#define LOST (-1000000)	/* an heir has died */

static void meet(int round)
{
	++*met;
	while (*met < 2 * round) {
		expect(*met >= 0);
		sleep_us(50);
	}
}

/* What two heirs have, and what is not the owner's: namespaces, a number in them, the user, the GPU. */
struct heir {
	int number, uid, device;
	const int *fds;
	const struct where *where;
	int n;
};

static void become(const struct heir *h)
{
	expect(!h->number || enter_namespaces(h->number));
	if (h->uid)
		expect(!setgid(h->uid) && !setuid(h->uid));
}

/* The GPU of the current context reads it itself. */
static void check_by_another_gpu(cu_ptr p, size_t size, uint32_t seed)
{
	cu_ptr own;

	expect_is(cu.mem_alloc(&own, size), 0);
	expect_is(copy_between(own, p, size), 0);
	check_by_cuda(own, size, seed);
	expect_is(cu.mem_free(own), 0);
}

/* Both see the owner's words at once; then each writes all of them and the other sees that. */
static void be_cuda_heir(void *arg)
{
	const struct heir *h = arg;
	struct mapped x;

	become(h);
	start(h->device);
	for (int i = 0; i < h->n; i++) {
		const struct where *w = &h->where[i];
		int rc = import_by_cuda(&x, h->fds[i], w->length, h->device);
		cu_ptr p = x.p + w->offset + w->skip;

		if (rc)
			note("CUDA imports %zu bytes of %s: %d", w->size, w->pooled ? "a pool" : "cuMemAlloc or cuMemCreate", rc);
		expect(!rc || w->pooled);
		meet(4 * i + 1);
		if (!rc) {
			check_by_cuda(p, w->size, 1);
			if (h->device)
				check_by_another_gpu(p, w->size, 1);
			fill_by_cuda(p, w->size, 2);
		}
		meet(4 * i + 2);
		meet(4 * i + 3);
		if (!rc) {
			check_by_cuda(p, w->size, 3);
			drop_mapped(&x);
		}
		meet(4 * i + 4);
	}
}

static void be_cpu_heir(void *arg)
{
	const struct heir *h = arg;

	become(h);
	g = open_or_fail();
	for (int i = 0; i < h->n; i++) {
		const struct where *w = &h->where[i];
		uint64_t offset, length;
		unsigned int count;
		gdr_mh_t mh;
		char *p;
		void *va;

		expect_is(gdr_pin_fd(g, h->fds[i], 0, &mh), 0);
		expect_is(gdr_get_object(g, mh, &offset, &length, &count), 0);
		expect(offset == w->offset && length == w->length && count == 1);
		expect_is(gdr_map(g, mh, &va, w->skip + w->size), 0);
		p = (char *)va + w->skip;
		check_by_cpu(mh, p, w->size, 1);
		meet(4 * i + 1);
		meet(4 * i + 2);
		if (!w->pooled)
			check_by_cpu(mh, p, w->size, 2);
		fill_by_cpu(mh, p, w->size, 3);
		meet(4 * i + 3);
		meet(4 * i + 4);
		expect_is(gdr_unpin_buffer(g, mh), 0);
	}
	expect_is(gdr_close(g), 0);
}

static void run_heirs(struct heir *h)
{
	pid_t heirs[2];
	int status, lost = 0;

	*met = 0;
	for (int i = 0; i < 2; i++) {
		heirs[i] = fork();
		if (!heirs[i]) {
			(i ? be_cpu_heir : be_cuda_heir)(h);
			_exit(0);
		}
	}
	while (heirs[0] || heirs[1]) {
		for (int i = 0; i < 2; i++) {
			if (!heirs[i] || waitpid(heirs[i], &status, WNOHANG) != heirs[i])
				continue;
			heirs[i] = 0;
			if (!child_ok(i ? "the heir without CUDA" : "the heir with CUDA", status)) {
				lost++;
				*met = LOST;
			}
		}
		sleep_us(1000);
	}
	expect_is(lost, 0);
}

static void try_namespaces(void *unused)
{
	expect(enter_namespaces(1));
}

static void has_two_gpus(void *unused)
{
	int (*can)(int *, int, int) = cuda_symbol("cuDeviceCanAccessPeer"), able = 1, count = 0;

	start_cuda(&cu);
	expect_is(cu.device_count(&count), 0);
	if (count > 1 && can && !on_doubles())
		expect_is(can(&able, 1, 0), 0);
	expect(count > 1 && able);
}

/*
 * The owner is killed; CUDA and a process without CUDA have its memory at once. In namespaces
 * apart, as containers are, it lives; CUDA IPC refuses a process of the owner's number (201).
 */
static void two_heirs(void *how)
{
	struct where where[MOST];
	struct heir h = *(const struct heir *)how;
	int ends[2], status, fds[MOST];
	size_t largest = 0;
	pid_t owner;

	if (h.uid && (on_doubles() || !is_root()))
		skip_case("needs root, to be nobody, and a driver that other users open");
	if (h.number && (!is_root() || !in_child("namespaces", try_namespaces, NULL, 10)))
		skip_case("needs root that may unshare namespaces, and mount /proc");
	if (h.device && !in_child("another GPU", has_two_gpus, NULL, 30))
		skip_case("needs two GPUs that reach each other");
	h.where = where;
	h.fds = fds;

	met = mmap(NULL, sizeof(*met), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	expect(met != MAP_FAILED);
	expect_is(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
	owner = fork();
	if (!owner) {
		be_owner(ends[1], h.number);
		_exit(1);
	}
	close(ends[1]);
	while (h.n < MOST && receive_with(ends[0], &where[h.n], sizeof(*where), &fds[h.n]) && where[h.n].size) {
		largest = where[h.n].size > largest ? where[h.n].size : largest;
		h.n++;
	}
	expect_is(kill(owner, SIGKILL), 0);
	expect_is(waitpid(owner, &status, 0), owner);
	expect(WIFSIGNALED(status) && h.n > 7 && !where[h.n].size);
	note("%d buffers of a dead process, the largest of %zu MiB", h.n, largest / MIB);
	run_heirs(&h);
}

/* Requests of a client of the test's own, for what the library never writes. */
static struct {
	int ctl, gpu;
	uint32_t client, device;
} raw;

static uint32_t raw_control(uint32_t object, uint32_t cmd, void *params, size_t size)
{
	struct rm_control a = { .client = raw.client, .object = object, .cmd = cmd,
				.params = (uintptr_t)params, .params_size = size };

	expect_is(ioctl(raw.ctl, RM_CONTROL, &a), 0);
	return a.status;
}

static uint32_t raw_alloc(uint32_t class, void *params, size_t size)
{
	struct rm_alloc a = { .root = raw.client, .parent = raw.client, .class = class,
			      .params = (uintptr_t)params, .params_size = size };

	expect_is(ioctl(raw.ctl, RM_ALLOC, &a), 0);
	expect_is(a.status, 0);
	return a.object;
}

static uint32_t raw_import(int fd, uint32_t *object)
{
	struct rm_import_fd p = { .fd = fd, .type = RM_FD_OBJECT, .device = raw.device, .parent = raw.device };
	uint32_t status = raw_control(raw.client, RM_CTRL_IMPORT_FD, &p, sizeof(p));

	*object = p.object;
	return status;
}

/* A device of the GPU that the memory in fd is of, and an object of that memory. */
static uint32_t raw_start(int fd)
{
	struct rm_card_info cards[32] = { { .valid = 0 } };
	uint32_t object;

	memset(&raw, 0, sizeof(raw));
	raw.ctl = open(RM_CTL_DEVICE, O_RDWR | O_CLOEXEC);
	expect(raw.ctl >= 0);
	raw.client = raw_alloc(RM_CLASS_CLIENT, NULL, 0);
	expect_is(ioctl(raw.ctl, RM_CARD_INFO(32), cards), 0);
	for (int i = 0; i < 32; i++) {
		struct rm_id_info id = { .gpu_id = cards[i].gpu_id };
		struct rm_register_fd reg = { .ctl_fd = raw.ctl };
		struct rm_device_params p = { .client_share = raw.client, .va_mode = 2 };
		char path[32];

		snprintf(path, sizeof(path), RM_GPU_DEVICE "%u", cards[i].minor);
		raw.gpu = cards[i].valid ? open(path, O_RDWR | O_CLOEXEC) : -1;
		if (raw.gpu < 0 || ioctl(raw.gpu, RM_REGISTER_FD, &reg) ||
		    raw_control(raw.client, RM_CTRL_ID_INFO, &id, sizeof(id)))
			continue;
		p.instance = id.instance;
		raw.device = raw_alloc(RM_CLASS_DEVICE, &p, sizeof(p));
		if (!raw_import(fd, &object))
			return object;
	}
	expect(!"a GPU with that memory");
	return 0;
}

/* The words of a label, as rm/share.go has them. */
enum { FIRST, COUNT1 = 8, PAGES1, COUNT, PAGES, MAGIC, OFFSET, WORDS = 16 };

static void read_label(int fd, uint32_t *label)
{
	struct rm_export_info info = { .fd = fd };
	size_t mig = sizeof(info.mig);
	uint32_t status = raw_control(raw.client, RM_CTRL_EXPORT_INFO, &info, sizeof(info));

	/* 535 has no mig. */
	if (status) {
		expect_is(raw_control(raw.client, RM_CTRL_EXPORT_INFO, &info, sizeof(info) - mig), 0);
		memcpy(label, info.label - mig, sizeof(info.label));
	} else {
		memcpy(label, info.label, sizeof(info.label));
	}
}

static int raw_export(const uint32_t *objects, int n, int most, const uint32_t *label)
{
	struct rm_export_objects p = { .fd = open(RM_CTL_DEVICE, O_RDWR | O_CLOEXEC), .device = raw.device,
				       .most = most, .n = n };

	expect(p.fd >= 0);
	memcpy(p.label, label, sizeof(p.label));
	memcpy(p.objects, objects, n * sizeof(*objects));
	expect_is(raw_control(raw.client, RM_CTRL_EXPORT_OBJECTS, &p, sizeof(p)), 0);
	return p.fd;
}

static int raw_export_plainly(uint32_t object)
{
	struct rm_export_fd p = { .type = RM_FD_OBJECT, .device = raw.device, .parent = raw.device, .object = object };

	p.fd = open(RM_CTL_DEVICE, O_RDWR | O_CLOEXEC);
	expect(p.fd >= 0);
	expect_is(raw_control(raw.client, RM_CTRL_EXPORT_FD, &p, sizeof(p)), 0);
	return p.fd;
}

/* cuMemCreate, and CUDA's own descriptor of it; -1 where this driver makes none of that kind. */
static int cuda_exports_as(cu_mem *mem, size_t size, int place, bool compressible)
{
	struct cu_mem_want want = { CU_MEM_PINNED, CU_EXPORT_FD, { place, 0 }, .compression = compressible };
	int fd;

	if (cu.create(mem, size, &want, 0))
		return -1;
	expect_is(export_handle(&fd, *mem, CU_EXPORT_FD, 0), 0);
	return fd;
}

static int cuda_exports(cu_mem *mem, size_t size, int place)
{
	return cuda_exports_as(mem, size, place, false);
}

enum { HOST = 2, HOST_NUMA };	/* places of cuMemCreate */

static int host_memory(void)
{
	cu_mem mem;
	int fd = cuda_exports(&mem, OBJECT, HOST_NUMA);

	return fd >= 0 ? fd : cuda_exports(&mem, OBJECT, HOST);
}

static bool is_coherent(void)
{
	const char *machine = getenv("NVRM_SIM_MACHINE");
	int coherent = 0;

	if (on_doubles())
		return machine && strcmp(machine, "pcie");
	expect_is(cu.device_attribute(&coherent, CU_DEV_HOST_PAGE_TABLES, 0), 0);
	return coherent;
}

/* A process without CUDA, with a whole object of CUDA's. */
static void pin_whole(void *arg)
{
	const struct guest *x = arg;
	uint64_t offset, length;
	gdr_info_v2_t info;
	unsigned int count;
	gdr_mh_t mh;

	g = open_or_fail();
	expect_is(gdr_pin_fd(g, x->fd, 0, &mh), 0);
	expect_is(gdr_get_info_v2(g, mh, &info), 0);
	expect(!info.va && info.mapped_size == x->skip + x->size);
	expect_is(gdr_get_object(g, mh, &offset, &length, &count), 0);
	expect(!offset && length == info.mapped_size && count == 1);
	use(g, x->fd, x->skip, x->size, x->seed);
	expect_is(gdr_close(g), 0);
}

/*
 * cuMemExportToShareableHandle's descriptors, and such without a label. On GPUs with NVSwitch the last four have a second
 * object, the fabric's name of the memory, which no device can take. Of large memory the end is used.
 */
static void of_cuda(void)
{
	static const struct { size_t size; bool compressible; } memories[] = {
		{ OBJECT, false }, { 8 * OBJECT, false }, { 255 * OBJECT, false }, { 256 * OBJECT, false }, { 600 * OBJECT, false },
		{ OBJECT, true }, { 32 * OBJECT, true },
	};
	uint32_t label[WORDS], none[WORDS] = { 4 };
	struct mapped m, again;
	gdr_mh_t mh;

	start(0);
	g = open_or_fail();
	for (size_t i = 0; i < sizeof(memories) / sizeof(*memories); i++) {
		size_t size = memories[i].size, used = size > 8 * OBJECT && !guest_long ? OBJECT : size;
		struct guest x = { cuda_exports_as(&m.mem, size, CU_PLACE_GPU, memories[i].compressible), 0, size - used, used, 1 };
		uint32_t object;
		cu_ptr p;
		int fd;

		expect(x.fd >= 0);
		expect_is(map_whole(&m, size, 0), 0);
		p = m.p + x.skip;
		fill_by_cuda(p, used, 1);
		expect(in_child("a guest with CUDA's descriptor", pin_whole, &x, 60));
		check_by_cuda(p, used, 2);
		object = raw_start(x.fd);
		read_label(x.fd, label);
		expect(!memcmp(label, none, sizeof(label)));
		close(x.fd);
		x.fd = raw_export_plainly(object);
		x.seed = 2;
		expect(in_child("a guest with a descriptor that has no label", pin_whole, &x, 60));
		check_by_cuda(p, used, 3);
		expect_is(gdr_pin_fd(g, x.fd, 0, &mh), 0);
		expect_is(gdr_export_fd(g, mh, GDR_EXPORT_FLAG_WHOLE, &fd), 0);
		expect_is(gdr_unpin_buffer(g, mh), 0);
		expect_is(import_by_cuda(&again, fd, size, 0), 0);
		check_by_cuda(again.p + x.skip, used, 3);
		drop_mapped(&again);
		drop_mapped(&m);
		close(fd);
		close(x.fd);
		close(raw.gpu);
		close(raw.ctl);
	}
}

/* CUDA's descriptors of what is no GPU's memory, and of a pool. */
static void of_cuda_that_is_no_buffer(void)
{
	struct { int type, fd_type; struct cu_place place; void *security; size_t most; char rest[56]; } want = {
		CU_MEM_PINNED, CU_EXPORT_FD, { CU_PLACE_GPU, 0 } };
	int (*create)(void **, const void *), (*give)(int *, void *, int, unsigned long long);
	int fd, rc;
	gdr_mh_t mh;
	void *pool;

	start(0);
	g = open_or_fail();
	fd = host_memory();
	if (fd >= 0) {
		expect_is(gdr_pin_fd(g, fd, 0, &mh), is_coherent() ? 0 : EINVAL);
		expect(is_coherent() || logged("memory of the host's"));
		close(fd);
	} else {
		note("CUDA gives no host memory a descriptor here");
	}
	create = cuda_symbol("cuMemPoolCreate");
	give = cuda_symbol("cuMemPoolExportToShareableHandle");
	rc = create && give ? create(&pool, &want) : CU_NOT_SUPPORTED;
	if (!rc)
		rc = give(&fd, pool, CU_EXPORT_FD, 0);
	if (rc) {
		note("CUDA gives no pool a descriptor here: %d", rc);
		return;
	}
	expect_is(gdr_pin_fd(g, fd, 0, &mh), ENOTSUP);
	expect(logged("memory pool"));
}

/*
 * A label of one object is CUDA's but for its end; one of two is refused by CUDA. The library finds the first memory by
 * asking, and has heard of the second.
 */
static void labels_of_ours(void)
{
	static const size_t two[] = { OBJECT, OBJECT };
	uint32_t label[WORDS], start_of[COUNT] = { 4 };
	uint64_t offset, length;
	struct mapped x;
	unsigned int count;
	struct shared s;
	cu_ptr p[2];
	cu_mem mem;

	start(0);
	p[0] = make_vmm(&cu, two, 2);
	g = open_or_fail();
	p[1] = make_vmm(&cu, two, 2);
	for (int i = 0; i < 2; i++) {
		pin_and_export(&s, p[i] + GPU_PAGE_SIZE, OBJECT - GPU_PAGE_SIZE);
		raw_start(s.fd);
		read_label(s.fd, label);
		expect(!memcmp(label, start_of, sizeof(start_of)));
		expect_is(import_by_cuda(&x, s.fd, OBJECT, 0), 0);
		drop_mapped(&x);
		close(s.fd);
		pin_and_export(&s, p[i] + GPU_PAGE_SIZE, OBJECT);
		read_label(s.fd, label);
		expect(label[COUNT1] == 1 && label[PAGES1] == GPU_PAGES(OBJECT) - 1);
		expect(label[COUNT] == 1 && label[PAGES] == 1);
		expect_is(gdr_get_object(g, s.mh, &offset, &length, &count), 0);
		expect(offset == GPU_PAGE_SIZE && length == OBJECT && count == 2);
		expect_is(import_handle(&mem, (void *)(intptr_t)s.fd, CU_EXPORT_FD), CU_NOT_SUPPORTED);
		close(s.fd);
	}
}

enum of { VIDEO, TWICE, TWO, HOSTS, NONE };

/*
 * What a row of hostile_labels exports, and how it differs from a good label. Labels that are
 * wrong whatever the file has are those of TestLabelOfAnother.
 */
struct row {
	const char *what;
	enum of of;
	int most, want;
	uint32_t change[4][2];	/* word, value */
};

static const struct row rows[] = {
	{ "a right one", VIDEO, 1, 0 },
	{ "CUDA's", VIDEO, 1, 0, { { MAGIC, 0 } } },
	{ "CUDA's, in a file with room", VIDEO, 100, 0, { { MAGIC, 0 } } },
	{ "CUDA's, of two objects: the first", TWO, 2, 0, { { MAGIC, 0 } } },
	{ "a pool's", VIDEO, 1, ENOTSUP, { { FIRST, 5 }, { MAGIC, 0 } } },
	{ "one page too long", VIDEO, 1, EINVAL, { { PAGES, GPU_PAGES(OBJECT) + 1 } } },
	{ "2^32 pages", VIDEO, 1, EINVAL, { { PAGES, UINT32_MAX } } },
	{ "an offset with an end outside", VIDEO, 1, EINVAL, { { OFFSET, 1 } } },
	{ "an offset outside", VIDEO, 1, EINVAL, { { OFFSET, UINT32_MAX } } },
	{ "more objects than the file has room for", VIDEO, 1, EINVAL, { { FIRST, 77 }, { COUNT, 2 } } },
	{ "more objects than the file has", VIDEO, 9, EINVAL, { { FIRST, 77 }, { COUNT, 2 } } },
	{ "128 objects", VIDEO, 128, EINVAL, { { FIRST, 77 }, { COUNT, 128 } } },
	{ "fewer objects than the file has", TWO, 2, EINVAL },
	{ "one object twice", TWICE, 2, 0, { { FIRST, 77 }, { COUNT, 2 } } },
	{ "two runs of it", TWICE, 2, 0, { { FIRST, 77 }, { COUNT1, 1 }, { PAGES1, 1 } } },
	{ "the second too long", TWICE, 2, EINVAL, { { FIRST, 77 }, { COUNT1, 1 }, { PAGES1, 1 }, { PAGES, 33 } } },
	{ "no memory", NONE, 4, EINVAL },
	{ "host memory", HOSTS, 1, EINVAL },
	{ "host memory under CUDA's label", HOSTS, 1, EINVAL, { { MAGIC, 0 } } },
};

static struct {
	uint32_t objects[2], host;
	uint32_t label[WORDS];
	int fd;			/* of the library's */
} good;

static void prepare_labels(void)
{
	struct shared s;
	uint32_t other;
	cu_mem mem;
	cu_ptr p;
	int fd;

	start(0);
	g = open_or_fail();
	p = make_vmm(&cu, (size_t[]){ OBJECT }, 1);
	pin_and_export(&s, p, OBJECT);
	good.fd = s.fd;
	good.objects[0] = raw_start(s.fd);
	read_label(s.fd, good.label);
	expect_is(good.label[PAGES], GPU_PAGES(OBJECT));
	fd = cuda_exports(&mem, OBJECT, CU_PLACE_GPU);
	expect_is(raw_import(fd, &good.objects[1]), 0);
	close(fd);
	fd = host_memory();
	if (fd >= 0 && !raw_import(fd, &other))
		good.host = other;
	close(fd);
	expect_is(gdr_unpin_buffer(g, s.mh), 0);
}

static int export_row(const struct row *r)
{
	uint32_t twice[2] = { good.objects[0], good.objects[0] }, label[WORDS];

	memcpy(label, good.label, sizeof(label));
	for (int i = 0; i < 4; i++)
		if (r->change[i][0] || r->change[i][1])
			label[r->change[i][0]] = r->change[i][1];
	/* The first word of several objects is what the magic is. */
	if (label[FIRST] == 77)
		label[FIRST] = label[MAGIC];
	switch (r->of) {
	case VIDEO:	return raw_export(good.objects, 1, r->most, label);
	case TWO:	return raw_export(good.objects, 2, r->most, label);
	case TWICE:	return raw_export(twice, 2, r->most, label);
	case HOSTS:	return raw_export(&good.host, 1, r->most, label);
	case NONE:	return raw_export(&(uint32_t){ 0 }, 1, r->most, label);
	}
	return -1;
}

/* What is pinned can be mapped, all of it. */
static void pin_and_map(int fd)
{
	gdr_info_v2_t info;
	uint32_t w;
	gdr_mh_t mh;
	void *va;

	expect_is(gdr_pin_fd(g, fd, 0, &mh), 0);
	expect_is(gdr_get_info_v2(g, mh, &info), 0);
	expect_is(gdr_map(g, mh, &va, info.mapped_size), 0);
	expect_is(gdr_copy_from_mapping(mh, &w, (char *)va + info.mapped_size - 4, 4), 0);
	expect_is(gdr_unpin_buffer(g, mh), 0);
}

/* In the order of rows, first with nothing imported before. After each one the good one pins and maps. */
static void hostile_labels(void)
{
	unsigned long live = 0;
	long fds = 0;
	int rc;

	prepare_labels();
	for (int turn = 0; turn < 2; turn++) {
		for (size_t n = sizeof(rows) / sizeof(*rows), i = n; i-- > 0; ) {
			const struct row *r = &rows[i];
			gdr_mh_t mh = { 77 };
			int fd, want = r->of == HOSTS && is_coherent() ? 0 : r->want;

			if (r->of == HOSTS && !good.host) {
				note("no %s here", r->what);
				continue;
			}
			fd = export_row(r);
			rc = gdr_pin_fd(g, fd, 0, &mh);
			if (rc != want)
				note("%s: %d, want %d", r->what, rc, want);
			expect_is(rc, want);
			if (rc) {
				expect_is(mh.h, 77);
			} else {
				expect_is(gdr_unpin_buffer(g, mh), 0);
				pin_and_map(fd);
			}
			close(fd);
			pin_and_map(good.fd);
			if (turn) {
				expect_is(count_live(), live);
				expect_is(count_fds(), fds);
			}
		}
		live = count_live();
		fds = count_fds();
	}
}

/* What the driver has in use: GPU memory and BAR1, in bytes. */
struct in_use {
	unsigned long long memory, bar1;
};

static struct in_use ask_use(void)
{
	static int (*init)(void), (*at)(unsigned int, void **), (*bar1)(void *, unsigned long long *);
	unsigned long long bar[3] = { 0 };	/* total, free, used */
	struct in_use use = { 0 };
	size_t free, total;
	void *nvml, *gpu;

	expect_is(memory_info(&free, &total), 0);
	use.memory = total - free;
	nvml = dlopen("libnvidia-ml.so.1", RTLD_NOW);
	if (on_doubles() || !nvml)
		return use;
	init = dlsym(nvml, "nvmlInit_v2");
	at = dlsym(nvml, "nvmlDeviceGetHandleByIndex_v2");
	bar1 = dlsym(nvml, "nvmlDeviceGetBAR1MemoryInfo");
	expect(init && at && bar1 && !init() && !at(0, &gpu) && !bar1(gpu, bar));
	use.bar1 = bar[2];
	return use;
}

/* Export, CUDA's import, a guest's pin and map, and the end of all: descriptors, memory and BAR1 as before. */
static void leaves_nothing(void)
{
	int rounds = guest_long ? 10000 : 200;
	struct in_use before = { 0 }, after;
	unsigned long live = 0;
	struct mapped x;
	struct where w;
	struct shared s;
	unsigned int n;
	long fds = 0;
	cu_ptr p;

	start(0);
	g = open_or_fail();
	expect_is(cu.mem_alloc(&p, 65536), 0);
	for (int i = 0; i < rounds; i++) {
		pin_and_export(&s, p, 65536);
		expect_is(gdr_get_object(g, s.mh, &w.offset, &w.length, &n), 0);
		expect_is(import_by_cuda(&x, s.fd, w.length, 0), 0);
		pin_and_map(s.fd);
		drop_mapped(&x);
		expect_is(gdr_unpin_buffer(g, s.mh), 0);
		close(s.fd);
		if (i == 10) {
			before = ask_use();
			live = count_live();
			fds = count_fds();
		}
	}
	after = ask_use();
	note("%d exports, imports and unmaps: memory %llu and %llu bytes in use, BAR1 %llu and %llu", rounds, before.memory,
	     after.memory, before.bar1, after.bar1);
	expect_is(count_fds(), fds);
	expect_is(count_live(), live);
	expect_is(after.memory, before.memory);
	expect_is(after.bar1, before.bar1);
}

static _Atomic bool over;
static _Atomic(gdr_t) passing;	/* which a thread closes all the time */
static int shared_fd;

/* By a gdr_t that another thread closes. The model of guest/threads has all of this by one that stays. */
static void *pin_all_the_time(void *arg)
{
	while (!over) {
		gdr_t at = passing;
		uint64_t offset = 0, length = 0;
		unsigned int count = 0;
		gdr_mh_t mh;
		int fd;

		if (!succeeds(gdr_pin_fd(at, shared_fd, 0, &mh), EINVAL))
			continue;
		if (succeeds(gdr_get_object(at, mh, &offset, &length, &count), EINVAL))
			expect(length == OBJECT && !offset && count == 1);
		else
			expect(!length);
		if (succeeds(gdr_export_fd(at, mh, 0, &fd), EINVAL))
			close(fd);
		succeeds(gdr_unpin_buffer(at, mh), EINVAL);
	}
	return NULL;
}

static void *close_all_the_time(void *arg)
{
	while (!over) {
		gdr_t old = passing, next = gdr_open();

		expect(next != NULL);
		passing = next;
		expect_is(gdr_close(old), 0);
	}
	return NULL;
}

static int swapped_fd, swaps[4];

/* Between the requests of a pin its descriptor may become another one, or be closed. */
static void *swap_all_the_time(void *arg)
{
	uint64_t seed = 7;

	while (!over) {
		int i = next_random(&seed) % 5;

		if (i < 4)
			expect_is(dup3(swaps[i], swapped_fd, O_CLOEXEC), swapped_fd);
		else
			close(swapped_fd);
	}
	return NULL;
}

static void *pin_what_is_swapped(void *arg)
{
	while (!over) {
		gdr_info_v2_t info;
		gdr_mh_t mh;
		void *va;

		if (!succeeds(gdr_pin_fd(g, swapped_fd, 0, &mh), ENOTSUP))
			continue;
		expect_is(gdr_get_info_v2(g, mh, &info), 0);
		expect_is(gdr_map(g, mh, &va, info.mapped_size), 0);
		expect_is(gdr_unpin_buffer(g, mh), 0);
	}
	return NULL;
}

/* Threads pin what others close or swap. */
static void beside_others(void)
{
	pthread_t t[4];
	struct shared s;
	unsigned long live;
	long fds;
	cu_mem mem;

	start(0);
	g = open_or_fail();
	passing = open_or_fail();
	export_new(&s, OBJECT);
	shared_fd = s.fd;
	pin_and_map(s.fd);
	swaps[0] = s.fd;
	swaps[1] = cuda_exports(&mem, 4 * OBJECT, CU_PLACE_GPU);
	pin_and_export(&s, make_vmm(&cu, (size_t[]){ OBJECT, OBJECT }, 2), 2 * OBJECT);
	swaps[2] = s.fd;
	swaps[3] = memfd_create("none", MFD_CLOEXEC);
	swapped_fd = 200;
	live = count_live();
	fds = count_fds();
	start_thread(&t[0], 0, pin_all_the_time, NULL);
	start_thread(&t[1], 0, close_all_the_time, NULL);
	start_thread(&t[2], 0, swap_all_the_time, NULL);
	start_thread(&t[3], 0, pin_what_is_swapped, NULL);
	sleep_us(scaled(guest_long ? 30 : 2) * 1000000);
	over = true;
	join_threads(t, 4);
	close(swapped_fd);
	expect_is(gdr_close(passing), 0);
	expect_is(count_fds(), fds);
	expect_is(count_live(), live);
}

const struct guest_case cases[] = {
	{ "two heirs of a dead process, CUDA and a CPU", NULL, 30, 300, two_heirs, &(struct heir){ 0 } },
	{ "two heirs who are nobody", NULL, 30, 300, two_heirs, &(struct heir){ .uid = NOBODY } },
	{ "two heirs in namespaces apart, of the owner's number", NULL, 30, 300, two_heirs, &(struct heir){ .number = 1 } },
	{ "two heirs in namespaces apart, of another number", NULL, 30, 300, two_heirs, &(struct heir){ .number = 3 } },
	{ "two heirs, of which one is on another GPU", NULL, 30, 300, two_heirs, &(struct heir){ .device = 1 } },
	{ "what CUDA exports", of_cuda, 60, 120 },
	{ "what CUDA exports that is no buffer", of_cuda_that_is_no_buffer, 10 },
	{ "labels of the library", labels_of_ours, 10 },
	{ "labels of anybody", hostile_labels, 30 },
	{ "nothing is left", leaves_nothing, 30, 120 },
	{ "beside threads that close and swap", beside_others, 60, 120 },
	{ NULL },
};
