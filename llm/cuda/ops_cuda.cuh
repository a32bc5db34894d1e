// ops_cuda: the functions behind the table of ops_cuda.cu, by the file that defines them. llm/ops.h says what they compute.
#ifndef LLM_CUDA_OPS_CUDA_CUH
#define LLM_CUDA_OPS_CUDA_CUH

#include "llm/cuda/cuda.cuh"

// linear.cu
void cuda_linear_forward(Stream *stream, Dtype dt, void *y, Dtype y_dtype, int64_t ld_y, const void *x, const void *w,
                         const void *bias, const void *residual, int64_t rows, int64_t in, int64_t out);
void cuda_linear_backward_input(Stream *stream, Dtype dt, void *dx, const void *dy, int64_t ld_dy, const void *w,
                                int64_t rows, int64_t in, int64_t out);
void cuda_linear_backward_weight(Stream *stream, Dtype dt, float *dw, float *db, const void *dy, int64_t ld_dy,
                                 const void *x, int64_t rows, int64_t in, int64_t out, bool accumulate);
size_t cuda_linear_scratch(Device *device, Dtype dt, Dtype y_dtype, int64_t ld_y, int64_t rows, int64_t in, int64_t out,
                           bool with_backward);

// embedding.cu
void cuda_embedding_forward(Stream *stream, Dtype dt, void *x, const void *token_table, const void *position_table,
                            const int32_t *tokens, int64_t rows, int seq_len, int first_position, int64_t channels);
void cuda_embedding_backward(Stream *stream, Dtype dt, float *dtoken_table, float *dposition_table, const void *dx,
                             const int32_t *tokens, int64_t rows, int seq_len, int64_t channels, int64_t vocab,
                             int64_t positions, bool accumulate_tokens, bool accumulate_positions);

// norm.cu
void cuda_norm_forward(Stream *stream, Dtype dt, NormKind kind, void *y, float *mean, float *rstd, const void *x,
                       const void *weight, const void *bias, float eps, int64_t rows, int64_t channels);
void cuda_norm_backward(Stream *stream, Dtype dt, NormKind kind, void *dx, float *dweight, float *dbias, const void *dy,
                        const void *residual, const void *x, const float *mean, const float *rstd, const void *weight,
                        int64_t rows, int64_t channels, bool accumulate);
size_t cuda_norm_scratch(Device *device, int64_t rows, int64_t channels);

// attention*.cu
void cuda_attention_forward(Stream *stream, Dtype dt, void *out, float *lse, const void *qkv, AttentionShape shape);
void cuda_attention_backward(Stream *stream, Dtype dt, void *dqkv, const void *dout, const void *qkv, const void *out,
                             const float *lse, AttentionShape shape);
size_t cuda_attention_scratch(Device *device, Dtype dt, AttentionShape shape);
void cuda_attention_decode(Stream *stream, Dtype dt, void *out, void *k_cache, void *v_cache, const void *qkv,
                           AttentionShape shape, int position, int max_positions);

// rope.cu
void cuda_rope(Stream *stream, Dtype dt, void *qkv, RopeTable table, AttentionShape shape, int first_position,
               bool inverse);

// activation.cu
void cuda_gelu_forward(Stream *stream, Dtype dt, void *y, const void *x, int64_t len);
void cuda_gelu_backward(Stream *stream, Dtype dt, void *dx, float *db, const void *dy, const void *x, int64_t rows,
                        int64_t ffn, bool accumulate);
void cuda_swiglu_forward(Stream *stream, Dtype dt, void *y, const void *gate_up, int64_t rows, int64_t ffn);
void cuda_swiglu_backward(Stream *stream, Dtype dt, void *dgate_up, const void *dy, const void *gate_up, int64_t rows,
                          int64_t ffn);

// loss.cu
void cuda_cross_entropy(Stream *stream, Dtype dt, float *losses, void *dlogits, int64_t ld_d, const float *logits,
                        int64_t ld, const int32_t *targets, int64_t rows, int64_t vocab, float scale);

// flat.cu
void cuda_sum_to_host(Stream *stream, double *sum, const float *values, int64_t len);
void cuda_sumsq_to_host(Stream *stream, float *tile_sums, const void *values, Dtype dtype, float divisor, int64_t len);
void cuda_convert(Stream *stream, void *to, Dtype to_dtype, const void *from, Dtype from_dtype, int64_t len);
void cuda_add(Stream *stream, void *to, Dtype to_dtype, const void *from, Dtype from_dtype, int64_t len);
void cuda_adamw(Stream *stream, const AdamwArgs *args);

#endif
