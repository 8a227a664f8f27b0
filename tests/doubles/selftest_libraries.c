// SPDX-License-Identifier: MIT
/* Self-tests of the stand-ins for the CUDA runtime and NVML, as far as libcuda's say nothing of it. */
#include "selftest.h"

#include <string.h>

int cudaSetDevice(int device);
int cudaGetLastError(void);
int cudaHostAlloc(void **p, size_t size, unsigned int flags);
int cudaHostGetDevicePointer(void **d, void *p, unsigned int flags);
int cudaFreeHost(void *p);
int cudaMallocAsync(void **p, size_t size, void *stream);
int cudaMallocFromPoolAsync(void **p, size_t size, void *pool, void *stream);
int cudaFreeAsync(void *p, void *stream);
int cudaGetSymbolAddress(void **p, const void *symbol);
int cudaGetSymbolSize(size_t *size, const void *symbol);
int cudaDeviceGetAttribute(int *v, int attr, int dev);

struct pci_info {
	char legacy[16];
	unsigned int domain, bus, device, id, subsystem;
	char text[32];
};

struct fabric {
	unsigned char cluster[16];
	int status;
	unsigned int clique;
	unsigned char state;
};

struct fabric_v2 {
	unsigned int version;
	struct fabric info;
	unsigned int health;
};

int nvmlInit_v2(void);
int nvmlShutdown(void);
const char *nvmlErrorString(int result);
int nvmlDeviceGetCount_v2(unsigned int *n);
int nvmlDeviceGetHandleByIndex(unsigned int i, void **device);
int nvmlDeviceGetHandleByPciBusId_v2(const char *id, void **device);
int nvmlDeviceGetPciInfo_v3(void *device, struct pci_info *info);
int nvmlDeviceGetBAR1MemoryInfo(void *device, unsigned long long *bar1);
int nvmlDeviceGetGpuFabricInfo(void *device, struct fabric *info);
int nvmlDeviceGetGpuFabricInfoV(void *device, struct fabric_v2 *info);
int nvmlDeviceGetNvLinkRemotePciInfo(void *device, unsigned int link, struct pci_info *info);
int cuDeviceGetPCIBusId(char *id, int len, int dev);

static void test_cudart(void)
{
	void *p, *d;
	size_t size;
	int pools;

	IS(cudaSetDevice(0), 0);
	IS(cudaHostAlloc(&p, 100, 2), 0);
	IS(cudaHostGetDevicePointer(&d, p, 0), 0);
	TRUE(d == p);
	IS(cudaFreeHost(p), 0);
	IS(cudaHostAlloc(&p, 100, 8), 1);
	IS(cudaHostGetDevicePointer(&d, &p, 0), 1);
	IS(cudaHostGetDevicePointer(NULL, &p, 0), 1);
	IS(cudaGetLastError(), 1);
	IS(cudaGetSymbolAddress(&p, "x"), 13);
	IS(cudaGetSymbolSize(&size, "x"), 13);
	IS(cudaGetLastError(), 13);
	IS(cudaGetSymbolAddress(NULL, "x"), 1);
	IS(cudaDeviceGetAttribute(&pools, 115, 0), 0);
	IS(cudaMallocFromPoolAsync(&p, 100, &size, NULL), 1);
	IS(cudaMallocAsync(NULL, 100, NULL), 1);
	IS(cudaMallocAsync(&p, 100, NULL), pools ? 0 : 801);
	if (pools)
		IS(cudaFreeAsync(p, NULL), 0);
	IS(cudaFreeAsync(&p, NULL), 1);
	IS(cudaGetLastError(), 1);
}

/* The GPUs of CUDA are among NVML's, by their addresses. */
static void test_addresses(unsigned int n)
{
	struct pci_info info;
	char id[sizeof(info.text) - 4], text[sizeof(info.text)];
	int i, count = 0;
	void *device;

	IS(cuDeviceGetCount(&count), 0);
	TRUE(count > 0 && (unsigned int)count <= n);
	for (i = 0; i < count; i++) {
		IS(cuDeviceGetPCIBusId(id, sizeof(id), i), 0);
		IS(nvmlDeviceGetHandleByPciBusId_v2(id, &device), 0);
		IS(nvmlDeviceGetPciInfo_v3(device, &info), 0);
		IS(strcmp(info.legacy, id), 0);
		memcpy(text, "0000", 4);
		strcpy(text + 4, id);
		IS(strcmp(info.text, text), 0);
	}
	IS(nvmlDeviceGetHandleByPciBusId_v2("0000:ff:00.0", &device), 6);
	IS(nvmlDeviceGetHandleByPciBusId_v2("GPU", &device), 2);
}

static void test_nvml(void)
{
	struct fabric_v2 v2 = { .version = 0 };
	unsigned long long bar1[3];
	struct pci_info info;
	struct fabric fabric;
	unsigned int n;
	void *device;

	IS(nvmlDeviceGetCount_v2(&n), 1);
	IS(nvmlShutdown(), 1);
	IS(nvmlInit_v2(), 0);
	IS(nvmlDeviceGetCount_v2(&n), 0);
	IS(nvmlDeviceGetHandleByIndex(n, &device), 2);
	IS(nvmlDeviceGetHandleByIndex(n - 1, &device), 0);
	test_addresses(n);
	IS(nvmlDeviceGetBAR1MemoryInfo(device, bar1), 0);
	TRUE(bar1[0] && bar1[0] == bar1[1] + bar1[2]);
	IS(nvmlDeviceGetBAR1MemoryInfo(NULL, bar1), 2);
	IS(nvmlDeviceGetGpuFabricInfo(device, &fabric), 0);
	IS(fabric.state, 0);
	IS(nvmlDeviceGetGpuFabricInfoV(device, &v2), 25);
	v2.version = sizeof(v2) | 2u << 24;
	IS(nvmlDeviceGetGpuFabricInfoV(device, &v2), 0);
	IS(v2.info.state, 0);
	IS(nvmlDeviceGetNvLinkRemotePciInfo(device, 0, &info), 3);
	IS(nvmlDeviceGetNvLinkRemotePciInfo(device, 99, &info), 2);
	IS(nvmlShutdown(), 0);
	IS(nvmlDeviceGetPciInfo_v3(device, &info), 1);
	IS(strcmp(nvmlErrorString(1), "Uninitialized"), 0);
}

int main(void)
{
	test_cudart();
	test_nvml();
	return tap_end();
}
