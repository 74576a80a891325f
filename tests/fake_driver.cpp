// A driver that answers as the macros say, for tests of what is said about drivers.
#include <cstring>
extern "C" {
int cuInit(unsigned) { return INIT_STATUS; }
int cuDriverGetVersion(int* version) { *version = VERSION; return 0; }
int cuDeviceGetCount(int* count) { *count = DEVICES; return 0; }
int cuDeviceGet(int* device, int ordinal) { *device = ordinal; return 0; }
int cuDeviceGetName(char* name, int size, int) { std::strncpy(name, "NVIDIA Test-GPU 9", size); return 0; }
int cuDeviceTotalMem_v2(unsigned long* bytes, int) { *bytes = 1ul << 30; return 0; }
int cuGetErrorName(int, const char** name) { *name = "CUDA_ERROR_TEST"; return 0; }
int cuDeviceGetAttribute(int* value, int which, int) {
    *value = which == 75 ? 9 : which == 76 ? MINOR : which == 16 ? 7 : which == 38 ? 1 << 20 : -1;
    return 0;
}
}
