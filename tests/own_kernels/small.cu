// Kernels of a stranger's, right and wrong, for tests/test_own_kernels.py. Each thread computes one element
// of C.

extern "C" __global__ void plain_sgemm(const float* A, const float* B, float* C, int m, int n, int k,
                                       float alpha, float beta) {
    int row = blockIdx.y * blockDim.y + threadIdx.y;
    int col = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= m || col >= n) return;
    float sum = 0.0f;
    for (int i = 0; i < k; ++i) sum += A[row * k + i] * B[i * n + col];
    C[row * n + col] = beta == 0.0f ? alpha * sum : alpha * sum + beta * C[row * n + col];
}

// blockIdx.x counts tiles row by row; 256 threads by its launch bound.
extern "C" __global__ void __launch_bounds__(256)
    pitched_sgemm(const float* A, const float* B, float* C, int m, int n, int k, long long lda, long long ldb,
                  long long ldc, float alpha, float beta) {
    int tiles_n = (n + 15) / 16;
    int row = blockIdx.x / tiles_n * 16 + threadIdx.x / 16;
    int col = blockIdx.x % tiles_n * 16 + threadIdx.x % 16;
    if (row >= m || col >= n) return;
    float sum = 0.0f;
    for (int i = 0; i < k; ++i) sum += A[row * lda + i] * B[i * ldb + col];
    float* c = C + row * ldc + col;
    *c = beta == 0.0f ? alpha * sum : alpha * sum + beta * *c;
}

// A C++ name, and blockIdx.x along m.
__global__ void turned_sgemm(const float* A, const float* B, float* C, int m, int n, int k, float alpha,
                             float beta) {
    int row = blockIdx.x * 16 + threadIdx.x / 16;
    int col = blockIdx.y * 16 + threadIdx.x % 16;
    if (row >= m || col >= n) return;
    float sum = 0.0f;
    for (int i = 0; i < k; ++i) sum += A[row * k + i] * B[i * n + col];
    C[row * n + col] = beta == 0.0f ? alpha * sum : alpha * sum + beta * C[row * n + col];
}

// Wrong: C is stored by columns.
extern "C" __global__ void transposed(const float* A, const float* B, float* C, int m, int n, int k,
                                      float alpha, float beta) {
    int row = blockIdx.y * 16 + threadIdx.x / 16;
    int col = blockIdx.x * 16 + threadIdx.x % 16;
    if (row >= m || col >= n) return;
    float sum = 0.0f;
    for (int i = 0; i < k; ++i) sum += A[row * k + i] * B[i * n + col];
    C[col * m + row] = beta == 0.0f ? alpha * sum : alpha * sum + beta * C[col * m + row];
}

// Wrong unless 16 divides k: the last steps are left out.
extern "C" __global__ void without_tail(const float* A, const float* B, float* C, int m, int n, int k,
                                        float alpha, float beta) {
    int row = blockIdx.y * 16 + threadIdx.x / 16;
    int col = blockIdx.x * 16 + threadIdx.x % 16;
    if (row >= m || col >= n) return;
    float sum = 0.0f;
    for (int i = 0; i < k / 16 * 16; ++i) sum += A[row * k + i] * B[i * n + col];
    C[row * n + col] = beta == 0.0f ? alpha * sum : alpha * sum + beta * C[row * n + col];
}

extern "C" __global__ void scalars_first(int m, int n, int k, float alpha, const float* A, const float* B,
                                         float beta, float* C) {
    if (threadIdx.x == 0) C[0] = alpha * A[0] * B[0] + beta * C[0] + m + n + k;
}

extern "C" __global__ void in_doubles(const float* A, const float* B, float* C, int m, int n, int k,
                                      double alpha, double beta) {
    if (threadIdx.x == 0) C[0] = alpha * A[0] * B[0] + beta * C[0] + m + n + k;
}

extern "C" __global__ void dynamic(const float* A, const float* B, float* C, int m, int n, int k, float alpha,
                                   float beta) {
    extern __shared__ float kept[];
    kept[threadIdx.x] = A[threadIdx.x] * B[threadIdx.x];
    __syncthreads();
    C[threadIdx.x] = alpha * kept[threadIdx.x ^ 1] + beta + m + n + k;
}

extern "C" __global__ void v0_naive(const float* A, const float* B, float* C, int m, int n, int k,
                                    float alpha, float beta) {
    if (threadIdx.x == 0) C[0] = alpha * A[0] * B[0] + beta * C[0] + m + n + k;
}
