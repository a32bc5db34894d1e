# CUDA sources on the CPU (dev/cudasim/README.md). A mode is one build of everything: objects in build/cudasim/MODE.
#   plain      fast; also with CUDASIM_PROTECT=1, which stops host code that touches device memory
#   sanitize   AddressSanitizer and UndefinedBehaviorSanitizer
#   race       the compiler's ThreadSanitizer hooks, answered by the simulator; libtsan is not linked
# Only beside the plain release build, whose objects of the CPU's kernels are shared: no kernel of theirs runs here.
ifeq ($(BUILD),build/release)
CUDA_HOME ?= $(firstword $(patsubst %/bin/nvcc,%,$(realpath $(shell command -v nvcc))) $(wildcard /usr/local/cuda))
ifneq ($(wildcard $(CUDA_HOME)/include/cuda_runtime.h),)

SIM_BUILD := build/cudasim
SIM_MODES := plain sanitize race
SIM_CXX := g++
SIM_CC := gcc
SIM_INCLUDES := -I. -isystem $(CUDA_HOME)/include
SIM_CXXFLAGS := -std=c++17 -O2 -g1 $(WARN) $(FLOATS) -pthread -MMD -MP $(SIM_INCLUDES)
# CUDA's own code: the simulator's header first, nvcc's pragmas ignored, vectors loaded from arrays of scalars.
SIM_CUFLAGS := -x c++ -include dev/cudasim/cudasim.h -Wno-unknown-pragmas -fno-strict-aliasing

SIM_FLAGS_plain :=
SIM_FLAGS_sanitize := -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer -DSANITIZE_BUILD
SIM_FLAGS_race := -fsanitize=thread -Wno-tsan -DCUDASIM_RACE
# The simulator itself is not instrumented in the race build, and does not link libtsan.
SIM_LIB_FLAGS_plain :=
SIM_LIB_FLAGS_sanitize := $(SIM_FLAGS_sanitize)
SIM_LIB_FLAGS_race := -DCUDASIM_RACE
SIM_LINK_plain :=
SIM_LINK_sanitize := $(SIM_FLAGS_sanitize)
SIM_LINK_race :=

SIM_LIB_SRC_race := $(wildcard dev/cudasim/*.cpp)
SIM_LIB_SRC_plain := $(filter-out %/race.cpp %/tsan_hooks.cpp,$(SIM_LIB_SRC_race))
SIM_LIB_SRC_sanitize := $(SIM_LIB_SRC_plain)
SIM_PROGRAMS := $(patsubst test/cudasim/%.cu,%,$(wildcard test/cudasim/*.cu))

# The whole program, with what belongs to CUDA from *.cu; C is compiled with HAVE_CUDA and HAVE_NCCL. In the race build C
# is instrumented too, so that what the host does to pinned memory is checked.
SIM_CU_SRC := $(wildcard llm/cuda/*.cu) $(if $(filter 1,$(HAVE_MPI)),$(wildcard zero/*.cu))
SIM_LDLIBS := $(filter-out $(CUDA_LIBS),$(LDLIBS))
sim_cflags = $(CFLAGS) -DHAVE_CUDA -DHAVE_NCCL $(SIM_FLAGS_$(1))
# Of the release build's objects: all of them where they are the same, the CPU's kernels everywhere.
SIM_SHARED_plain := $(if $(filter 11,$(HAVE_CUDA)$(HAVE_NCCL)),$(LIB_OBJ),$(filter $(BUILD)/llm/cpu/%,$(LIB_OBJ)))
SIM_SHARED_sanitize := $(filter $(BUILD)/llm/cpu/%,$(LIB_OBJ))
SIM_SHARED_race := $(SIM_SHARED_sanitize)
sim_objects = $(SIM_SHARED_$(1)) $(patsubst $(BUILD)/%,$(SIM_BUILD)/$(1)/%,$(filter-out $(SIM_SHARED_$(1)),$(LIB_OBJ))) \
    $(SIM_CU_SRC:%.cu=$(SIM_BUILD)/$(1)/%.o)

define sim_mode
$(SIM_BUILD)/$(1)/dev/cudasim/%.o: dev/cudasim/%.cpp
	@mkdir -p $$(@D) && echo "  c++  $$< ($(1))" && $(SIM_CXX) $(SIM_CXXFLAGS) $(SIM_LIB_FLAGS_$(1)) -c -o $$@ $$<
$(SIM_BUILD)/$(1)/%.o: %.cu
	@mkdir -p $$(@D) && echo "  cu   $$< ($(1))" && \
	    $(SIM_CXX) $(SIM_CXXFLAGS) $(SIM_CUFLAGS) $(SIM_FLAGS_$(1)) -c -o $$@ $$<
$(SIM_BUILD)/$(1)/%.o: %.c
	@mkdir -p $$(@D) && echo "  cc   $$< ($(1))" && $(SIM_CC) $$(call sim_cflags,$(1)) -c -o $$@ $$<
$(SIM_BUILD)/$(1)/libcudasim.a: $(SIM_LIB_SRC_$(1):%.cpp=$(SIM_BUILD)/$(1)/%.o)
	@rm -f $$@ && ar rcs $$@ $$^
$(SIM_BUILD)/$(1)/libzero.a: $(call sim_objects,$(1))
	@rm -f $$@ && ar rcs $$@ $$^
$(SIM_BUILD)/$(1)/train_gpt: $(SIM_BUILD)/$(1)/train_gpt.o $(SIM_BUILD)/$(1)/libzero.a $(SIM_BUILD)/$(1)/libcudasim.a
	@echo "  link $$@" && $(SIM_CXX) -fopenmp $(SIM_LINK_$(1)) -o $$@ $$^ $(SIM_LDLIBS)
$(SIM_BUILD)/$(1)/test/test_%: $(SIM_BUILD)/$(1)/test/test_%.o $(SIM_BUILD)/$(1)/libzero.a $(SIM_BUILD)/$(1)/libcudasim.a
	@echo "  link $$@" && $(SIM_CXX) -fopenmp $(SIM_LINK_$(1)) -o $$@ $$^ -lcmocka $(SIM_LDLIBS)
$(SIM_BUILD)/$(1)/test/cudasim/%: $(SIM_BUILD)/$(1)/test/cudasim/%.o $(SIM_BUILD)/$(1)/libcudasim.a
	@echo "  link $$@" && $(SIM_CXX) $(SIM_LINK_$(1)) -o $$@ $$^ -ldl -pthread
endef
$(foreach mode,$(SIM_MODES),$(eval $(call sim_mode,$(mode))))

# What test/test_cudasim.py, test/test_cuda.py and test/test_cuda_ranks.py run.
.PHONY: cudasim_tests cuda_tests
cudasim_tests: $(foreach mode,$(SIM_MODES),$(SIM_PROGRAMS:%=$(SIM_BUILD)/$(mode)/test/cudasim/%))
CUDA_TESTS := train_gpt test/test_device test/test_ops test/test_attention test/test_comm
cuda_tests: $(foreach mode,$(SIM_MODES),$(CUDA_TESTS:%=$(SIM_BUILD)/$(mode)/%))
tests: cudasim_tests cuda_tests

endif
endif
