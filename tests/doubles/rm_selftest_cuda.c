// SPDX-License-Identifier: MIT
/*
 * Self-tests of the simulated libcuda on the simulated driver. The object of an address
 * can be seen as with the real ones, and mapped. TAP output.
 */
#include "rm_selftest.h"

#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

int cuDeviceGetPCIBusId(char *id, int len, int dev);
int cuMemAllocAsync(cu_ptr *p, size_t size, void *stream);
int cuMemFreeAsync(cu_ptr p, void *stream);
int cuMemAllocManaged(cu_ptr *p, size_t size, unsigned int flags);

struct ipc_handle {
	uint32_t word[16];
};

int cuIpcGetMemHandle(struct ipc_handle *h, cu_ptr p);
int cuIpcOpenMemHandle_v2(cu_ptr *p, struct ipc_handle h, unsigned int flags);
int cuIpcCloseMemHandle(cu_ptr p);

typedef int ioctl_fn(int fd, unsigned long cmd, ...);

/* The requests that libcuda made. */
static struct seen {
	unsigned int requests;
	struct rm_dmabuf arg;
	size_t size;
} seen;

/* libcuda's own references to ioctl, and how many there are. */
static ioctl_fn **slot;
static unsigned int slots;

static int watched_ioctl(int fd, unsigned long cmd, ...)
{
	va_list ap;
	void *arg;

	va_start(ap, cmd);
	arg = va_arg(ap, void *);
	va_end(ap);
	if (_IOC_TYPE(cmd) == RM_TYPE && _IOC_NR(cmd) == _IOC_NR(RM_EXPORT_DMABUF)) {
		seen.requests++;
		seen.size = _IOC_SIZE(cmd);
		memcpy(&seen.arg, arg, seen.size < sizeof(seen.arg) ? seen.size : sizeof(seen.arg));
	}
	return ioctl(fd, cmd, arg);
}

static int find_slot(struct dl_phdr_info *info, size_t size, void *arg)
{
	const ElfW(Rela) *rela = NULL;
	const ElfW(Sym) *symbols = NULL;
	const ElfW(Dyn) *d = NULL;
	const char *names = NULL;
	size_t i, bytes = 0;

	(void)size;
	(void)arg;
	if (!strstr(info->dlpi_name, "libcuda.so"))
		return 0;
	for (i = 0; i < info->dlpi_phnum; i++)
		if (info->dlpi_phdr[i].p_type == PT_DYNAMIC)
			d = (const void *)(info->dlpi_addr + info->dlpi_phdr[i].p_vaddr);
	for (; d && d->d_tag; d++) {
		if (d->d_tag == DT_JMPREL)
			rela = (const void *)d->d_un.d_ptr;
		else if (d->d_tag == DT_PLTRELSZ)
			bytes = d->d_un.d_val;
		else if (d->d_tag == DT_SYMTAB)
			symbols = (const void *)d->d_un.d_ptr;
		else if (d->d_tag == DT_STRTAB)
			names = (const void *)d->d_un.d_ptr;
	}
	for (i = 0; rela && symbols && names && i < bytes / sizeof(*rela); i++) {
		const ElfW(Sym) *s = &symbols[ELF64_R_SYM(rela[i].r_info)];

		if (strcmp(names + s->st_name, "ioctl") == 0) {
			slot = (ioctl_fn **)(info->dlpi_addr + rela[i].r_offset);
			slots++;
		}
	}
	return 1;
}

/* Exports while libcuda is watched, and closes the export. Returns the result. */
static int watch(cu_ptr p, size_t size)
{
	uintptr_t page = (uintptr_t)slot & ~(uintptr_t)(PAGE - 1);
	ioctl_fn *real = *slot;
	int fd, result;

	memset(&seen, 0, sizeof(seen));
	mprotect((void *)page, PAGE, PROT_READ | PROT_WRITE);
	*slot = watched_ioctl;
	result = cuMemGetHandleForAddressRange(&fd, p, size, 1, 0);
	*slot = real;
	if (!result)
		close(fd);
	return result;
}

/* Compares bytes both ways: a mapping of the seen object, and CUDA. */
static bool same_memory(const struct rm *r, cu_ptr p, cu_ptr page)
{
	uint8_t in[64], out[64], *m;
	bool same = false;
	uint64_t lin;
	uint32_t copy;
	size_t i;

	if (rm_dup(r, seen.arg.client, seen.arg.handles[0], &copy))
		return false;
	m = rm_map(r, copy, seen.arg.offsets[0], PAGE, &lin);
	if (!m)
		return false;
	for (i = 0; i < sizeof(in); i++)
		in[i] = (uint8_t)(i * 7 + p / 512);
	memcpy(m + (p - page), in, sizeof(in));
	same = !cuMemcpyDtoH_v2(out, p, sizeof(out)) && !memcmp(in, out, sizeof(in)) &&
	       !cuMemsetD8_v2(p, 0x5a, sizeof(out)) && m[p - page] == 0x5a &&
	       m[p - page + sizeof(out) - 1] == 0x5a;
	munmap(m, PAGE);
	return !rm_unmap(r, copy, lin) && !rm_free(r, copy) && same;
}

/* Finds and maps the memory at p. */
static bool mapped(const struct rm *r, cu_ptr p, int result)
{
	cu_ptr page = p & ~(cu_ptr)(PAGE - 1);

	return watch(page, PAGE) == result && seen.requests == 1 && same_memory(r, p, page);
}

/* A client on the GPU of CUDA's device, by its PCI address. */
static void open_device(struct rm *r, int dev)
{
	unsigned int domain, bus, slot_no;
	struct rm_card_info c[32];
	char id[32];
	int i, n, ctl = ctl_open();

	IS(cuDeviceGetPCIBusId(id, sizeof(id), dev), 0);
	IS(sscanf(id, "%x:%x:%x.0", &domain, &bus, &slot_no), 3);
	n = cards(ctl, c, 32);
	for (i = 0; i < n; i++)
		if (c[i].pci_domain == domain && c[i].pci_bus == bus && c[i].pci_slot == slot_no)
			break;
	TRUE(i < n && i != dev && c[i].minor != (uint32_t)dev);
	close(ctl);
	rm_open(r, i);
}

static void test_kinds(const struct rm *r)
{
	struct vmm v = vmm_make(0, 2 * MIB, 0);
	cu_ptr small[20], big, pool;
	int i;

	for (i = 0; i < 20; i++)
		IS(cuMemAlloc_v2(&small[i], 1000), 0);
	TRUE(mapped(r, small[0], 0));
	TRUE(mapped(r, small[19], 0));
	TRUE(seen.arg.offsets[0] > 0 && seen.size == sizeof(struct rm_dmabuf));
	/* A window that ends past a small buffer. */
	IS(watch(small[0] & -(cu_ptr)PAGE, 64 << 10), 0);
	IS(cuMemAlloc_v2(&big, 3 * MIB + 100), 0);
	TRUE(mapped(r, big, 0));
	TRUE(mapped(r, big + 2 * MIB + 12345, 0));
	IS(seen.arg.offsets[0], 2 * MIB + (12345 & -(int)PAGE));
	TRUE(mapped(r, v.addr + MIB, 0));
	/* Pool memory: the sizes are wrong and the export fails. */
	IS(cuMemAllocAsync(&pool, 100000, NULL), 0);
	TRUE(mapped(r, pool, 1));
	IS(seen.arg.offsets[0], MIB);
	IS(seen.arg.sizes[0], PAGE - MIB);
	IS(cuMemFree_v2(big), 0);
	IS(cuMemFreeAsync(big, NULL), 1);
	IS(cuMemFreeAsync(pool, NULL), 0);
	for (i = 0; i < 20; i++)
		IS(cuMemFree_v2(small[i]), 0);
	vmm_free(&v);
}

/* Memory lives while there is a duplicate. */
static void test_after_free(const struct rm *r)
{
	uint64_t lin;
	uint32_t copy;
	cu_ptr p, q;
	uint8_t *m;

	IS(cuMemAlloc_v2(&p, MIB), 0);
	IS(cuMemsetD8_v2(p, 1, MIB), 0);
	IS(watch(p, PAGE), 0);
	IS(rm_dup(r, seen.arg.client, seen.arg.handles[0], &copy), 0);
	m = rm_map(r, copy, seen.arg.offsets[0], MIB, &lin);
	TRUE(m);
	IS(cuMemFree_v2(p), 0);
	IS(cuMemAlloc_v2(&q, MIB), 0);
	IS(q, p);
	IS(cuMemsetD8_v2(q, 2, MIB), 0);
	IS(m[MIB - 1], 1);
	munmap(m, MIB);
	IS(rm_unmap(r, copy, lin), 0);
	IS(rm_free(r, copy), 0);
	IS(cuMemFree_v2(q), 0);
}

static void test_shareable(const struct rm *r)
{
	struct vmm v = vmm_make(0, 2 * MIB, 1);
	struct rm_import_fd im = { .type = RM_FD_OBJECT, .device = r->device, .parent = r->device };
	uint64_t lin, again;
	uint8_t *m;
	int fd;

	IS(cuMemExportToShareableHandle(&fd, v.handle, 1, 0), 0);
	im.fd = fd;
	IS(rm_control(r, RM_CTRL_IMPORT_FD, &im, sizeof(im)), 0);
	/* Two exports of one memory are one memory to this process. */
	IS(cuMemImportFromShareableHandle(&again, (void *)(intptr_t)fd, 1), 0);
	close(fd);
	m = rm_map(r, im.object, 0, 2 * MIB, &lin);
	TRUE(m);
	IS(cuMemsetD8_v2(v.addr, 3, 2 * MIB), 0);
	IS(m[2 * MIB - 1], 3);
	munmap(m, 2 * MIB);
	IS(rm_unmap(r, im.object, lin), 0);
	IS(rm_free(r, im.object), 0);
	IS(cuMemRelease(again), 0);
	vmm_free(&v);
}

static int child_ipc(const struct ipc_handle *h)
{
	struct rm r;
	cu_ctx ctx;
	cu_ptr p;

	if (cuInit(0) || cuDevicePrimaryCtxRetain(&ctx, 0) || cuCtxSetCurrent(ctx))
		return 1;
	if (cuIpcOpenMemHandle_v2(&p, *h, 1) || cuMemsetD8_v2(p, 7, 1000))
		return 2;
	/* CUDA refuses, and makes no request. */
	if (watch(p & -(cu_ptr)PAGE, PAGE) != 1 || seen.requests)
		return 3;
	rm_open(&r, 0);
	if (cuIpcCloseMemHandle(p) || cuIpcCloseMemHandle(p) != 1 || cuda_sim_live())
		return 4;
	return cuCtxSynchronize();
}

static void test_ipc(int to, int status_fd)
{
	struct vmm v = vmm_make(0, 2 * MIB, 1);
	struct ipc_handle h;
	cu_ptr first, p, pool;
	uint8_t byte;
	int status;

	IS(cuMemAlloc_v2(&first, 5000), 0);
	IS(cuMemAlloc_v2(&p, 1000), 0);
	IS(cuIpcGetMemHandle(&h, p), 0);
	IS(watch(p & -(cu_ptr)PAGE, PAGE), 0);
	IS(h.word[2], getpid());
	IS(h.word[4], 1000);
	IS(h.word[7], seen.arg.offsets[0] + p % PAGE);
	IS(h.word[12], seen.arg.client);
	IS(h.word[13], seen.arg.handles[0]);
	IS(cuIpcOpenMemHandle_v2(&pool, h, 1), 201);
	IS(cuIpcGetMemHandle(&h, v.addr), 1);
	IS(cuMemAllocAsync(&pool, 100, NULL), 0);
	IS(cuIpcGetMemHandle(&h, pool), 1);
	IS(cuIpcGetMemHandle(&h, p), 0);
	IS(write(to, &h, sizeof(h)), sizeof(h));
	IS(read(status_fd, &status, sizeof(status)), sizeof(status));
	IS(status, 0);
	IS(cuMemcpyDtoH_v2(&byte, p + 999, 1), 0);
	IS(byte, 7);
	IS(cuMemFree_v2(pool), 0);
	IS(cuMemFree_v2(p), 0);
	IS(cuMemFree_v2(first), 0);
	vmm_free(&v);
}

static void test_refused(void)
{
	void *host;
	cu_ptr p;

	IS(cuMemAllocManaged(&p, MIB, 3), 1);
	IS(cuMemAllocManaged(&p, MIB, 1), 0);
	IS(attribute(8, p + 100), 1);
	IS(attribute(2, p), 2);
	IS(watch(p, PAGE), 1);
	IS(seen.requests, 0);
	IS(cuMemAllocHost_v2(&host, MIB), 0);
	IS(watch((uintptr_t)host, PAGE), 1);
	IS(cuMemFreeHost((void *)(uintptr_t)p), 1);
	IS(cuMemFree_v2((uintptr_t)host), 1);
	IS(cuMemFree_v2(p), 0);
	IS(cuMemFreeHost(host), 0);
}

static void test_dmabuf_fd(void)
{
	struct rm_sim_stats s;
	int fd, v, version;
	struct rm r;
	cu_ptr p;

	rm_open(&r, 0);
	IS(cuDriverGetVersion(&version), 0);
	IS(version, 13000);
	IS(cuDeviceGetAttribute(&v, 152, 0), 1);
	IS(cuMemAlloc_v2(&p, MIB), 0);
	IS(cuMemGetHandleForAddressRange(&fd, p, PAGE, 1, 0), 0);
	TRUE(mmap(NULL, PAGE, PROT_READ, MAP_SHARED, fd, 0) == MAP_FAILED);
	IS(errno, ENODEV);
	IS(cuda_sim_live(), 2);
	IS(cuMemFree_v2(p), 0);
	s = rm_stats(&r);
	close(fd);
	TRUE(rm_stats(&r).files + 1 == s.files);
	rm_close(&r);
}

/* A process that has CUDA of its own, and opens the memory sent to it. */
static pid_t start_child(int *to, int *status_fd)
{
	int down[2], up[2], status;
	struct ipc_handle h;
	pid_t pid;

	if (pipe2(down, O_CLOEXEC) || pipe2(up, O_CLOEXEC))
		abort();
	pid = fork();
	if (!pid) {
		status = read(down[0], &h, sizeof(h)) == sizeof(h) ? child_ipc(&h) : 99;
		_exit(write(up[1], &status, sizeof(status)) != sizeof(status));
	}
	close(down[0]);
	close(up[1]);
	*to = down[1];
	*status_fd = up[0];
	return pid;
}

/* A driver before 570: its request is shorter. */
void test_rm_cuda_old(void)
{
	const struct rm_dmabuf_2600 *old = (const void *)&seen.arg;
	int version;
	cu_ctx ctx;
	cu_ptr p;

	dl_iterate_phdr(find_slot, NULL);
	IS(cuInit(0), 0);
	IS(cuDriverGetVersion(&version), 0);
	IS(version, 12020);
	IS(cuDevicePrimaryCtxRetain(&ctx, 0), 0);
	IS(cuCtxSetCurrent(ctx), 0);
	IS(cuMemAlloc_v2(&p, MIB), 0);
	IS(watch(p + PAGE, PAGE), 0);
	IS(seen.size, sizeof(*old));
	IS(old->offsets[0], PAGE);
	TRUE(old->client && old->handles[0]);
}

/* This must be the first use of CUDA in the process. */
void test_rm_cuda(void)
{
	int to, status_fd, status;
	struct rm r, second;
	cu_ctx ctx, ctx2;
	cu_ptr p;
	pid_t pid;

	dl_iterate_phdr(find_slot, NULL);
	IS(slots, 1);
	pid = start_child(&to, &status_fd);
	IS(cuInit(0), 0);
	IS(cuDevicePrimaryCtxRetain(&ctx, 0), 0);
	IS(cuCtxSetCurrent(ctx), 0);
	open_device(&r, 0);
	test_kinds(&r);
	test_after_free(&r);
	test_shareable(&r);
	test_refused();
	test_dmabuf_fd();
	test_ipc(to, status_fd);
	IS(waitpid(pid, &status, 0), pid);
	/* The second GPU: its memory is not the first one's. */
	open_device(&second, 1);
	IS(cuCtxCreate_v2(&ctx2, 0, 1), 0);
	IS(cuMemAlloc_v2(&p, MIB), 0);
	IS(attribute(9, p), 1);
	TRUE(mapped(&second, p, 0));
	TRUE(!mapped(&r, p, 0));
	IS(cuCtxDestroy_v2(ctx2), 0);
	IS(cuda_sim_live(), 0);
	IS(rm_stats(&r).used, 0);
	IS(rm_stats(&r).mappings, 0);
	rm_close(&second);
	rm_close(&r);
	close(to);
	close(status_fd);
}
