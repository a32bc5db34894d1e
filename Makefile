# make            build train_gpt with what this machine has (it says what it found)
# make test       build and run every test           make test SANITIZE=1   the same under AddressSanitizer and UBSan
# make bench      measure speed on this machine      make bench-zero   measure what many ranks cost      make clean
#                                                    make bench-save   measure what saving costs
#                                                    make bench-offload   measure what offload costs
# Options: CC=clang  DEBUG=1 (-O0 -g)  MPI=0 (leave MPI out)  ONEDNN=0 (use OpenBLAS)  CUDA=0 (leave CUDA out)

ifeq ($(origin CC),default)
CC := gcc
endif
.DEFAULT_GOAL := all
SHELL := /bin/bash
# One folder for each way to build, so that objects of different compilers and libraries never mix.
VARIANT := $(filter-out gcc,$(CC))$(if $(filter 0,$(ONEDNN)),-openblas)$(if $(filter 0,$(MPI)),-nompi)$(if $(filter 0,$(CUDA)),-nocuda)
BUILD := build/$(if $(SANITIZE),sanitize,release)$(if $(DEBUG),-debug)$(addprefix -,$(VARIANT:-%=%))
FOUND := $(BUILD)/found.mk
PROBE := scripts/probe.sh
PYTHON ?= /usr/bin/python3# the one that Debian's packages install into

WARN := -Wall -Wextra -Wshadow -Werror -Wno-psabi
# No fast-math anywhere: results are promised bit for bit. Contraction is off so that a fused multiply-add happens where the
# source says fma and nowhere else. errno and traps are not used by any caller, and without them loops vectorise.
FLOATS := -ffp-contract=off -fno-math-errno -fno-trapping-math
CFLAGS := -std=c11 -D_GNU_SOURCE -I. $(WARN) $(FLOATS) -fopenmp -pthread -MMD -MP $(if $(DEBUG),-O0 -g3,-O3 -g)
LDLIBS := -lm -ldl -pthread
ifdef SANITIZE
SANITIZER := -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer -DSANITIZE_BUILD
CFLAGS += $(SANITIZER)
CUDA := 0# CUDA's sources are sanitized in the simulator (dev/cudasim)
endif

# ---- what this machine has: each probe compiles and links one line (a name in a package list proves nothing) ----
include $(FOUND)
$(FOUND): Makefile $(PROBE)
	@mkdir -p $(@D) && CC="$(CC)" MPI="$(MPI)" ONEDNN="$(ONEDNN)" CUDA="$(CUDA)" $(PROBE) > $@.tmp && mv $@.tmp $@

CFLAGS += $(FOUND_CFLAGS)
LDLIBS := $(FOUND_LIBS) $(CUDA_LIBS) $(LDLIBS)
# The same rules for numbers as FLOATS: nvcc contracts unless told not to.
NVCCFLAGS := -std=c++17 -O3 -fmad=false $(filter -I% -DHAVE_%,$(CFLAGS)) -MMD -MP -Werror all-warnings $(NVCC_ARCHS) \
    $(foreach flag,$(WARN) $(SANITIZER),-Xcompiler $(flag))

# ---- sources ----
LIB_SRC := $(wildcard llm/*.c zero/*.c data/*.c) $(filter-out %_isa.c,$(wildcard llm/cpu/*.c))
ifneq ($(HAVE_MPI),1)
LIB_SRC := $(filter-out zero/comm_mpi%.c,$(LIB_SRC))
endif
ifeq ($(HAVE_CUDA),1)
CU_SRC := $(wildcard llm/cuda/*.cu)
ifeq ($(HAVE_NCCL)$(HAVE_MPI),11)
CU_SRC += $(wildcard zero/*.cu)
endif
endif
# Kernels in llm/cpu/*_isa.c are compiled once per instruction set; llm/cpu/cpu.h picks one at run time.
ISA_SRC := $(wildcard llm/cpu/*_isa.c)
ARCH := $(shell uname -m)
ifeq ($(ARCH),x86_64)
ISAS := base avx2 avx512
else
ISAS := base
endif
ISA_FLAGS_base := -DISA=base
ISA_FLAGS_avx2 := -DISA=avx2 -mavx2 -mfma -mf16c
ISA_FLAGS_avx512 := -DISA=avx512 -march=skylake-avx512 -mavx512bf16 -mprefer-vector-width=512
LIB_OBJ := $(LIB_SRC:%.c=$(BUILD)/%.o) $(foreach isa,$(ISAS),$(ISA_SRC:%.c=$(BUILD)/%.$(isa).o))
CU_OBJ := $(CU_SRC:%.cu=$(BUILD)/%.o)
TESTS := $(patsubst test/%.c,$(BUILD)/test/%,$(wildcard test/test_*.c))

.PHONY: all test tests bench bench-zero bench-save bench-offload clean format
.SECONDARY:
all: train_gpt
train_gpt: $(BUILD)/train_gpt
	@ln -sf $< $@
$(BUILD)/train_gpt: $(BUILD)/train_gpt.o $(BUILD)/libzero.a
	@echo "  link $@" && $(CC) $(CFLAGS) -o $@ $^ $(LDLIBS)
$(BUILD)/libzero.a: $(LIB_OBJ) $(CU_OBJ)
	@rm -f $@ && ar rcs $@ $^
$(BUILD)/%.o: %.c
	@mkdir -p $(@D) && echo "  cc   $<" && $(CC) $(CFLAGS) -c -o $@ $<
$(CU_OBJ): $(BUILD)/%.o: %.cu
	@mkdir -p $(@D) && echo "  nvcc $<" && $(NVCC) $(NVCCFLAGS) -c -o $@ $<
define isa_rule
$(BUILD)/%.$(1).o: %.c
	@mkdir -p $$(@D) && echo "  cc   $$< ($(1))" && $(CC) $(CFLAGS) $$(ISA_FLAGS_$(1)) -c -o $$@ $$<
endef
$(foreach isa,$(ISAS),$(eval $(call isa_rule,$(isa))))
$(BUILD)/test/%: $(BUILD)/test/%.o $(BUILD)/libzero.a
	@echo "  link $@" && $(CC) $(CFLAGS) -o $@ $^ -lcmocka $(LDLIBS)
$(BUILD)/dev/%: $(BUILD)/dev/%.o $(BUILD)/libzero.a
	@echo "  link $@" && $(CC) $(CFLAGS) -o $@ $^ $(LDLIBS)

# The same program with the hooks that tests need (llm/hooks.h): the few sources that have any, compiled once more; the
# linker takes these before those of the library.
HOOKED := $(shell grep -l '"llm/hooks.h"' $(LIB_SRC))
$(BUILD)/hooks/%.o: %.c
	@mkdir -p $(@D) && echo "  cc   $< (hooks)" && $(CC) $(CFLAGS) -DTEST_HOOKS -c -o $@ $<
$(BUILD)/train_gpt_hooks: $(BUILD)/train_gpt.o $(HOOKED:%.c=$(BUILD)/hooks/%.o) $(BUILD)/libzero.a
	@echo "  link $@" && $(CC) $(CFLAGS) -o $@ $^ $(LDLIBS)

tests: $(TESTS) $(BUILD)/train_gpt $(BUILD)/train_gpt_hooks
test: tests
	@BUILD=$(BUILD) scripts/run_tests.sh
bench: $(BUILD)/train_gpt $(BUILD)/dev/bench_peak $(BUILD)/dev/bench_loader
	@$(PYTHON) dev/bench.py --build $(BUILD) && $(BUILD)/dev/bench_loader
# Two ranks beside one, overlap and the planner's seconds between two hosts, as ratios (root for the hosts; half an hour)
bench-zero: $(BUILD)/train_gpt $(BUILD)/dev/bench_comm
	@$(PYTHON) dev/bench_zero.py --build $(BUILD)
# What saves cost training, as ratios within one run of gpt2-124m (five minutes)
bench-save: $(BUILD)/train_gpt
	@$(PYTHON) dev/bench_save.py --build $(BUILD)
# The optimizer on the host and on NVMe, as ratios (fio; a quarter of an hour)
bench-offload: $(BUILD)/train_gpt $(BUILD)/dev/bench_adamw
	@$(PYTHON) dev/bench_offload.py --build $(BUILD)
format:
	@clang-format -i $(shell git ls-files '*.c' '*.h')
clean:
	rm -rf build train_gpt

-include dev/cudasim/cudasim.mk
-include test/fuzz/fuzz.mk
-include $(shell find build -name '*.d' 2>/dev/null)
