# Fuzz targets (test/fuzz/fuzz_*.c) with clang's libFuzzer, ASan and UBSan, whatever compiler the rest is built with:
#   make fuzz      build them into build/fuzz; `make tests` does too where clang can
# Only the sources that read what comes from outside are compiled once more; the rest is the library as it is.
FUZZ_BUILD := build/fuzz
FUZZ_FLAGS := -std=c11 -D_GNU_SOURCE -I. $(WARN) $(FLOATS) -O1 -g -MMD -MP -pthread -fno-omit-frame-pointer \
    -fsanitize=address,undefined -fno-sanitize-recover=all
FUZZ_SRC := $(wildcard llm/config*.c llm/deepspeed*.c llm/hf_config*.c) llm/flags.c llm/loss_scale.c llm/model_spec.c \
    llm/nearest.c llm/presets.c llm/relaxed_json.c llm/status.c llm/utf8.c zero/durable.c zero/hash.c zero/layout.c \
    $(wildcard zero/manifest*.c) zero/safetensors.c data/encode.c data/h5.c data/shard_file.c data/shards.c data/unicode.c \
    data/vocab.c
FUZZ_LIBS := $(LDLIBS) $(if $(filter clang,$(CC)),-fopenmp,-lgomp)
FUZZ_OBJ := $(FUZZ_SRC:%.c=$(FUZZ_BUILD)/%.o)
FUZZ_TARGETS := $(patsubst test/fuzz/%.c,$(FUZZ_BUILD)/%,$(wildcard test/fuzz/fuzz_*.c))

.PHONY: fuzz
fuzz: $(FUZZ_TARGETS)
$(FUZZ_BUILD)/%.o: %.c
	@mkdir -p $(@D) && echo "  cc   $< (fuzz)" && clang $(FUZZ_FLAGS) -fsanitize=fuzzer-no-link $(FOUND_CFLAGS) -c -o $@ $<
$(FUZZ_BUILD)/fuzz_%: $(FUZZ_BUILD)/test/fuzz/fuzz_%.o $(FUZZ_BUILD)/libfuzzed.a $(BUILD)/libzero.a
	@echo "  link $@" && clang $(FUZZ_FLAGS) -fsanitize=fuzzer -o $@ $^ $(FUZZ_LIBS)
$(FUZZ_BUILD)/libfuzzed.a: $(FUZZ_OBJ)
	@rm -f $@ && ar rcs $@ $^

# Part of the tests, where there is a clang with libFuzzer; test/test_fuzz.py says so where there is none.
-include $(FUZZ_BUILD)/found.mk
$(FUZZ_BUILD)/found.mk: test/fuzz/fuzz.mk
	@mkdir -p $(@D) && echo 'int LLVMFuzzerTestOneInput(void) { return 0; }' > $(@D)/probe.c
	@echo "HAVE_FUZZER := $$(clang -fsanitize=fuzzer,address,undefined -o $(@D)/probe $(@D)/probe.c 2>/dev/null && echo 1)" > $@
ifeq ($(HAVE_FUZZER)$(SANITIZE)$(DEBUG),1)
tests: fuzz
endif
-include $(shell find $(FUZZ_BUILD) -name '*.d' 2>/dev/null)
