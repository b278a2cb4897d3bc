/* A convolution without padding, its gradients, and max pooling, for weights that are mostly zero.

   Images are the last axis (channels, rows, columns, images): what one weight is multiplied with in a row of
   the output is contiguous, so a zero weight costs nothing. Where most weights are there, `dense_...` has
   several of them share what is loaded. All sums are of float32. */
#include <string.h>

#define CHUNK 64
#define LANES 16
#define MIN(a, b) ((a) < (b) ? (a) : (b))
#define MAX(a, b) ((a) > (b) ? (a) : (b))

/* y += value * x */
static inline void add(float *y, const float *x, float value, long length)
{
    for (long i = 0; i < length; i++)
        y[i] += value * x[i];
}

static inline float dot(const float *x, const float *y, long length)
{
    float sum[CHUNK] = {0}, total = 0;
    long i = 0;
    for (; i + CHUNK <= length; i += CHUNK)
        for (int k = 0; k < CHUNK; k++)
            sum[k] += x[i + k] * y[i + k];
    for (; i < length; i++)
        total += x[i] * y[i];
    for (int k = 0; k < CHUNK; k++)
        total += sum[k];
    return total;
}

void forward(const float *x, const float *w, const float *bias, float *y, int C, int H, int W, int O, int K,
             int N)
{
    const int OH = H - K + 1;
    const long length = (long)(W - K + 1) * N;
    for (int o = 0; o < O; o++) {
        for (long i = 0; i < OH * length; i++)
            y[o * OH * length + i] = bias[o];
        for (int t = 0; t < C * K * K; t++) {
            const float value = *w++;
            if (value != 0.0f)
                for (int row = 0; row < OH; row++) {
                    const long from = (((long)(t / (K * K)) * H + row + t / K % K) * W + t % K) * N;
                    add(y + ((long)o * OH + row) * length, x + from, value, length);
                }
        }
    }
}

/* The gradient of weights that are not zero; it is left as it is, which is 0, for the others. */
void of_weights(const float *x, const float *w, const float *dy, float *dw, int C, int H, int W, int O, int K,
                int N)
{
    const int OH = H - K + 1;
    const long length = (long)(W - K + 1) * N;
    for (int o = 0; o < O; o++)
        for (int t = 0; t < C * K * K; t++, dw++)
            if (*w++ != 0.0f) {
                float total = 0;
                for (int row = 0; row < OH; row++) {
                    const long from = (((long)(t / (K * K)) * H + row + t / K % K) * W + t % K) * N;
                    total += dot(x + from, dy + ((long)o * OH + row) * length, length);
                }
                *dw = total;
            }
}

void of_inputs(const float *w, const float *dy, float *dx, int C, int H, int W, int O, int K, int N)
{
    const int OH = H - K + 1;
    const long length = (long)(W - K + 1) * N;
    memset(dx, 0, sizeof(float) * C * H * W * N);
    for (int o = 0; o < O; o++)
        for (int t = 0; t < C * K * K; t++) {
            const float value = *w++;
            if (value != 0.0f)
                for (int row = 0; row < OH; row++) {
                    const long to = (((long)(t / (K * K)) * H + row + t / K % K) * W + t % K) * N;
                    add(dx + to, dy + ((long)o * OH + row) * length, value, length);
                }
        }
}

/* As `forward`, four outputs at a time; images and outputs in multiples of 64 and 4 (see taps.py). */
void dense_forward(const float *x, const float *w, const float *bias, float *y, int C, int H, int W, int O,
                   int K, int N)
{
    const int OH = H - K + 1, taps = C * K * K;
    const long length = (long)(W - K + 1) * N;
    for (int o = 0; o < O; o += 4, w += 4 * taps)
        for (int row = 0; row < OH; row++)
            for (long from = 0; from < length; from += CHUNK) {
                float sum[4][CHUNK];
                for (int b = 0; b < 4; b++)
                    for (int i = 0; i < CHUNK; i++)
                        sum[b][i] = bias[o + b];
                const float *weight = w;
                for (int c = 0; c < C; c++)
                    for (int kh = 0; kh < K; kh++)
                        for (int kw = 0; kw < K; kw++, weight++) {
                            const float *start = x + (((long)c * H + row + kh) * W + kw) * N + from;
                            for (int b = 0; b < 4; b++)
                                for (int i = 0; i < CHUNK; i++)
                                    sum[b][i] += weight[b * taps] * start[i];
                        }
                for (int b = 0; b < 4; b++)
                    memcpy(y + ((o + b) * OH + row) * length + from, sum[b], sizeof(sum[b]));
            }
}

/* As `of_weights`, five weights beside each other of four outputs at a time; K is 5. */
void dense_of_weights(const float *x, const float *w, const float *dy, float *dw, int C, int H, int W, int O,
                      int K, int N)
{
    const int OH = H - K + 1, taps = C * K * K;
    const long length = (long)(W - K + 1) * N;
    for (int o = 0; o < O; o += 4)
        for (int line = 0; line < C * K; line++) {
            float sum[4][5][LANES] = {0};
            for (int row = 0; row < OH; row++) {
                const float *left = x + ((long)(line / K) * H + row + line % K) * W * N;
                const float *right = dy + ((long)o * OH + row) * length;
                for (long from = 0; from < length; from += LANES)
                    for (int b = 0; b < 4; b++)
                        for (int kw = 0; kw < 5; kw++)
                            for (int i = 0; i < LANES; i++)
                                sum[b][kw][i] +=
                                    right[b * OH * length + from + i] * left[(long)kw * N + from + i];
            }
            for (int b = 0; b < 4; b++)
                for (int kw = 0; kw < 5; kw++) {
                    float total = 0;
                    for (int i = 0; i < LANES; i++)
                        total += sum[b][kw][i];
                    const long at = (long)(o + b) * taps + line * K + kw;
                    dw[at] = w[at] != 0.0f ? total : 0.0f;
                }
        }
}

/* As `of_inputs`, four channels at a time; `w` has the channels last: (outputs, K, K, channels). */
void dense_of_inputs(const float *w, const float *dy, float *dx, int C, int H, int W, int O, int K, int N)
{
    const int OH = H - K + 1, OW = W - K + 1;
    for (int c = 0; c < C; c += 4)
        for (int row = 0; row < H; row++)
            for (int column = 0; column < W; column++)
                for (long from = 0; from < N; from += CHUNK) {
                    float sum[4][CHUNK] = {0};
                    for (int o = 0; o < O; o++)
                        for (int kh = MAX(0, row - OH + 1); kh <= MIN(K - 1, row); kh++)
                            for (int kw = MAX(0, column - OW + 1); kw <= MIN(K - 1, column); kw++) {
                                const float *weight = w + (((long)o * K + kh) * K + kw) * C + c;
                                const float *start =
                                    dy + (((long)o * OH + row - kh) * OW + column - kw) * N + from;
                                for (int b = 0; b < 4; b++)
                                    for (int i = 0; i < CHUNK; i++)
                                        sum[b][i] += weight[b] * start[i];
                            }
                    for (int b = 0; b < 4; b++)
                        memcpy(dx + (((long)(c + b) * H + row) * W + column) * N + from, sum[b],
                               sizeof(sum[b]));
                }
}

/* 2 x 2, of even sizes; `which` says whose value was the largest, the first of equal ones. */
void pool(const float *x, float *y, unsigned char *which, int C, int H, int W, int N)
{
    for (long line = 0; line < (long)C * (H / 2) * (W / 2); line++) {
        const long row = line / (W / 2), column = line % (W / 2);
        const float *from = x + (2 * row * W + 2 * column) * N;
        for (int i = 0; i < N; i++) {
            float best = from[i];
            unsigned char place = 0;
            const float others[3] = {from[N + i], from[(long)W * N + i], from[(long)(W + 1) * N + i]};
            for (int k = 0; k < 3; k++)
                if (others[k] > best) {
                    best = others[k];
                    place = k + 1;
                }
            y[line * N + i] = best;
            which[line * N + i] = place;
        }
    }
}

void unpool(const float *dy, const unsigned char *which, float *dx, int C, int H, int W, int N)
{
    for (long line = 0; line < (long)C * (H / 2) * (W / 2); line++) {
        const long row = line / (W / 2), column = line % (W / 2);
        float *to = dx + (2 * row * W + 2 * column) * N;
        for (int k = 0; k < 4; k++)
            for (int i = 0; i < N; i++)
                to[(long)(k / 2 * W + k % 2) * N + i] = which[line * N + i] == k ? dy[line * N + i] : 0.0f;
    }
}
