"""Field failures C-51 to C-74: toolkits, architectures and compilers, found and asked about themselves."""

from __future__ import annotations

import pytest
from probe_hosts import INDEX, b200_host, finding, judged, outcomes
from record_parts import CUDA_ARCHS, DEBIAN, GPP, cuda_root, gcc, say, without

from deepinfer.probes.facts.arch import cuda_arch
from deepinfer.probes.report import text
from deepinfer.probes.wish import Wish

WHEELS = "/home/alice/venv/lib/python3.12/site-packages"
ROOT = WHEELS + "/nvidia/cu13"


def with_root(host, *roots):
    """``host`` with other CUDA roots than its own; each root is what ``cuda_root`` returns."""
    host = without(host, "/usr/local/cuda")
    for files, cmds in roots:
        host["files"].update(files)
        host["cmds"].update(cmds)
    return host


@pytest.mark.parametrize(
    ("archs", "outcome"),
    [
        (CUDA_ARCHS, "pass"),
        ("100", "pass"),
        ("120 100 75", "pass"),
        ("75 90 103 110 120", "fail"),
        ("10 1000 90", "fail"),
        ("90 100f", "fail"),
    ],
    ids=["C-51-unsorted", "C-51-only", "C-51-last", "C-51-dropped", "C-51-parts", "C-51-family"],
)
def test_nvcc_is_asked_for_its_architectures(archs, outcome):
    found = finding(judged(b200_host(archs=archs)), "toolkit.architectures")
    assert (found.outcome, found.needed) == (outcome, "sm_100a")


@pytest.mark.parametrize(
    "answer",
    [say("", 1, "nvcc fatal"), say("what?"), say("", None, "no answer in 10 s")],
    ids=["error", "text", "hang"],
)
def test_an_nvcc_that_does_not_list_its_architectures_is_unknown_and_not_unable_C_51(answer):
    verdict = judged(b200_host(cmds={"/usr/local/cuda-13.0/bin/nvcc --list-gpu-arch": answer}))
    found = finding(verdict, "toolkit.architectures")
    assert (verdict.verdict, found.outcome) == ("undetermined", "unknown") and "--list-gpu-arch" in found.found


@pytest.mark.parametrize("version", ["12.6.20", "12.4.131"], ids=["C-52", "C-52-12.4"])
def test_a_toolkit_from_before_the_architecture_says_which_it_lacks(version):
    verdict = judged(with_root(b200_host(), cuda_root("/usr/local/cuda", version, "50 60 70 80 90")))
    found = finding(verdict, "toolkit.architectures")
    assert verdict.verdict == "fixable"
    assert found.found == "nvcc of CUDA %s does not know compute_100" % version and "install CUDA" in found.fix
    assert finding(verdict, "toolkit.cuda").outcome == "fail"


@pytest.mark.parametrize(
    "word",
    ["10.0a", "100a", "sm_100a", "compute_100a", "100a-real", "10.0a+PTX", " 10.0a "],
    ids=lambda word: "C-54 %r" % word,
)
def test_every_known_spelling_of_an_architecture_gives_one_name(word):
    assert cuda_arch(word) == "100a"


@pytest.mark.parametrize(
    ("word", "name"),
    [("10.0", "100"), ("100f", "100f"), ("10.3a", "103a"), ("12.1", "121"), ("8.9+PTX", "89"), ("9.0a", "90a")],
)
def test_the_suffix_is_part_of_the_name_and_never_guessed_C_54(word, name):
    assert cuda_arch(word) == name


@pytest.mark.parametrize(
    "word",
    [
        "",
        "Blackwell",
        "native",
        "10.0b",
        "sm100a",
        "100a;90a",
        "12.1(2.0)",
        "No CUDA Devices found.",
        "1",
        "10.00",
        "\uff11\uff10\uff10a",
    ],
    ids=lambda word: "C-54 %r" % word,
)
def test_anything_else_is_no_architecture(word):
    assert cuda_arch(word) is None


def test_a_foreign_list_of_architectures_is_a_note_and_is_not_obeyed_C_54():
    verdict = judged(b200_host(env={"TORCH_CUDA_ARCH_LIST": "9.0a 10.0f;native"}))
    assert verdict.verdict == "eligible"
    assert any("90a, 100f, native" in note and "not obeyed" in note for note in verdict.notes)


@pytest.mark.parametrize(
    ("ptxas", "outcome"),
    [("13.0.88", "pass"), ("12.8.93", "fail"), ("13.3.73", "fail")],
    ids=["C-59-same", "C-59", "C-59-newer"],
)
def test_ptxas_of_another_release_in_the_same_root_is_a_mixed_toolkit(ptxas, outcome):
    root = "/usr/local/cuda-13.0"
    told = say("ptxas: NVIDIA (R) Ptx optimizing assembler\nrelease %s, V%s\n" % (ptxas.rpartition(".")[0], ptxas))
    verdict = judged(b200_host(files={root + "/bin/ptxas": "<exe>"}, cmds={root + "/bin/ptxas --version": told}))
    found = finding(verdict, "toolkit.consistent")
    assert found.outcome == outcome and "ptxas " + ptxas.rpartition(".")[0] in found.found and found.where == root


def test_ptxas_elsewhere_on_path_is_not_part_of_the_toolkit_C_59():
    host = b200_host(
        files={"/usr/bin/ptxas": "<exe>"}, cmds={"/usr/bin/ptxas --version": say("release 12.8, V12.8.93")}
    )
    assert judged(host).verdict == "eligible"


def test_a_newer_stub_install_loses_to_a_whole_toolkit_and_both_are_listed_C_60():
    stub = cuda_root("/usr/local/cuda-13.3", "13.3.73", leave_out=("host_config.h",))
    host = with_root(b200_host(), cuda_root("/usr/local/cuda-13.0"), stub)
    host["env"]["PATH"] = "/usr/local/cuda-13.3/bin:/usr/bin"
    verdict = judged(host)
    assert verdict.verdict == "eligible" and verdict.toolchain.cuda.root == "/usr/local/cuda-13.0"
    assert "passed over: CUDA 13.3.73 at /usr/local/cuda-13.3" in finding(verdict, "toolkit.cuda").found


def test_a_root_that_the_user_named_is_taken_even_if_it_is_incomplete_C_60():
    stub = cuda_root("/opt/cuda-13.3", "13.3.73", leave_out=("host_config.h",))
    host = b200_host(files=stub[0], cmds=stub[1], env={"CUDA_HOME": "/opt/cuda-13.3"})
    verdict = judged(host)
    assert verdict.verdict == "fixable" and verdict.toolchain.cuda.root == "/opt/cuda-13.3"
    assert "crt/host_config.h" in finding(verdict, "toolkit.parts").found


@pytest.mark.parametrize("named", ["CUDA_HOME", "CUDA_PATH", "key"], ids=["C-61", "C-61-path", "C-61-key"])
def test_an_explicit_toolkit_beats_the_one_on_path(named):
    other = cuda_root("/opt/cuda-12.9", "12.9.86")
    host = b200_host(files=other[0], cmds=other[1], env={} if named == "key" else {named: "/opt/cuda-12.9/"})
    wish = Wish()
    wish.toolkit = "/opt/cuda-12.9" if named == "key" else ""
    verdict = judged(host, wish=wish)
    found = finding(verdict, "toolkit.cuda")
    assert (verdict.verdict, found.outcome) == ("fixable", "fail") and "12.9.86 at /opt/cuda-12.9" in found.found
    assert found.where == ("-C deepinfer.toolkit" if named == "key" else named)


def test_the_nvcc_on_path_wins_where_it_qualifies_and_only_there_C_61():
    old, new = cuda_root("/usr", "12.0.140", "80 90"), cuda_root("/opt/cuda", "13.1.80")
    verdict = judged(with_root(b200_host(env={"PATH": "/usr/bin"}), old, new))
    assert verdict.verdict == "eligible" and verdict.toolchain.cuda.nvcc == "/opt/cuda/bin/nvcc"
    verdict = judged(b200_host(files=new[0], cmds=new[1]))
    assert verdict.toolchain.cuda.root == "/usr/local/cuda-13.0"


@pytest.mark.parametrize("top", ["/opt/real/cuda-13.0", "/opt/real/cuda-13.0/bin/.."], ids=["C-64", "C-64-dots"])
@pytest.mark.parametrize("there", [True, False], ids=["header-beside-it", "no-header"])
def test_nvcc_behind_a_wrapper_script_is_resolved_by_asking_it(top, there):
    wrapper = "/usr/local/bin/nvcc"
    host = with_root(b200_host(env={"PATH": "/usr/local/bin:/usr/bin"}), cuda_root("/opt/real/cuda-13.0"))
    host["files"][wrapper] = "<script>"
    host["cmds"][wrapper + " --dryrun -x cu /dev/null"] = say("", 0, "#$ _SPACE_= \n#$ TOP=%s\n#$ NVVMIR=x\n" % top)
    verdict = judged(host)
    assert (verdict.verdict, verdict.toolchain.cuda.root) == ("eligible", "/opt/real/cuda-13.0")
    assert wrapper in finding(verdict, "toolkit.cuda").where


def test_a_wrapper_that_will_not_say_its_root_is_passed_over_for_a_toolkit_that_does_C_64():
    host = b200_host(files={"/usr/local/bin/nvcc": "<script>"}, env={"PATH": "/usr/local/bin:/usr/bin"})
    host["cmds"]["/usr/local/bin/nvcc --dryrun -x cu /dev/null"] = say("ccache: error", 1)
    assert judged(host).toolchain.cuda.root == "/usr/local/cuda-13.0"


def wheel_host(*missing):
    files, cmds = cuda_root(ROOT, "13.0.88")
    files = {path.replace("targets/x86_64-linux/", ""): held for path, held in files.items()}
    files.update({ROOT + "/" + name: "<exe>" for name in ("bin/ptxas", "nvvm/bin/cicc", "lib/libcudart.so.13")})
    cmds[ROOT + "/bin/ptxas --version"] = say("release 13.0, V13.0.96")
    host = with_root(b200_host(env={"PATH": "/usr/bin", "HOME": "/home/alice"}), (files, cmds))
    host["python"]["site_packages"] = WHEELS
    host["listed"].append(WHEELS)
    return without(host, *(ROOT + "/" + name for name in missing)) if missing else host


def test_a_toolkit_made_of_wheels_is_found_off_path_and_patch_versions_may_differ_C_65():
    verdict = judged(wheel_host())
    assert verdict.verdict == "eligible" and verdict.toolchain.cuda.root == ROOT
    assert "alice" not in str(verdict.document())


@pytest.mark.parametrize(
    ("missing", "part", "wheel"),
    [
        ("nvvm", "cicc", "nvidia-nvvm"),
        ("include/crt", "crt/host_config.h", "nvidia-cuda-crt"),
        ("lib/", "libcudart", "nvidia-cuda-runtime"),
        ("bin/ptxas", "ptxas", "nvidia-cuda-nvcc"),
        ("bin/nvcc", "nvcc", "nvidia-cuda-nvcc"),
        ("include/cuda.h", "cuda.h", "nvidia-cuda-runtime"),
    ],
    ids=lambda text: "C-65-" + text.replace("/", "-"),
)
def test_each_missing_wheel_of_a_toolkit_is_named(missing, part, wheel):
    verdict = judged(wheel_host(missing))
    found = finding(verdict, "toolkit.parts")
    assert (verdict.verdict, found.outcome) == ("fixable", "fail")
    assert part in found.found and found.fix == "pip install " + wheel


@pytest.mark.parametrize("root", ["/usr", "/usr/local/cuda-13.0", "/opt/cuda"], ids=["C-66", "C-66-local", "C-66-opt"])
def test_libraries_without_a_compiler_are_two_checks(root):
    verdict = judged(with_root(b200_host(env={"PATH": "/usr/bin"}), cuda_root(root, leave_out=("/nvcc",))))
    assert (verdict.verdict, outcomes(verdict)) == ("fixable", {"toolkit.parts"})
    assert "CUDA 13.0 at " + root in finding(verdict, "toolkit.cuda").found
    assert "missing: nvcc" in finding(verdict, "toolkit.parts").found


@pytest.mark.parametrize(
    "path", ["/usr/bin:/bin", "", ":::", "relative/bin:."], ids=["C-68", "no-path", "empty", "relative"]
)
def test_a_missing_nvcc_lists_the_places_that_were_searched(path):
    verdict = judged(with_root(b200_host(env={"PATH": path})))
    found = finding(verdict, "toolkit.cuda")
    assert (verdict.verdict, found.found) == ("fixable", "no nvcc found")
    for place in ("CUDA_HOME", "PATH", "/usr/local/cuda*", "/opt/cuda", "site-packages/nvidia/cu13"):
        assert place in found.where and place in text(verdict, INDEX, everything=True)


@pytest.mark.parametrize(("compiler", "bound"), [("16.2.1", 15), ("14.1.0", 13)], ids=["C-70", "C-70-other-bound"])
def test_a_compiler_newer_than_nvcc_takes_is_named_with_the_one_to_use(compiler, bound):
    verdict = judged(b200_host(compiler=compiler, max_gcc=bound))
    found = finding(verdict, "compiler.cuda_host")
    assert verdict.verdict == "fixable" and outcomes(verdict) == {"compiler.cuda_host"}
    assert compiler in found.found and "<= %d" % bound in found.needed and "CUDAHOSTCXX=g++-%d" % bound in found.fix


def test_a_numbered_compiler_that_nvcc_takes_is_taken_instead_C_70():
    cmds = {GPP.replace("g++", "/usr/bin/g++-%d" % number, 1): gcc("%d.2.0" % number) for number in (12, 14, 15)}
    host = b200_host(compiler="16.2.1", cmds=cmds)
    verdict = judged(host)
    assert verdict.verdict == "eligible" and verdict.toolchain.compiler.version == (15, 2, 0)
    assert verdict.toolchain.cuda_host is verdict.toolchain.compiler


@pytest.mark.parametrize("version", ["12.2.0", "11.4.0", "8.5.0"], ids=["C-71", "C-71-11", "C-71-8"])
@pytest.mark.parametrize(
    ("release", "advice"),
    [(DEBIAN, "Debian 12 packages no GCC >= 13"), ("", "install GCC >=13.0"), ('ID="rocky"\n', "gcc-toolset-13")],
    ids=["debian", "unknown", "rocky"],
)
def test_a_compiler_that_is_too_old_says_what_this_distribution_has(version, release, advice):
    verdict = judged(b200_host(compiler=version, files={"/etc/os-release": release}))
    found = finding(verdict, "compiler.host")
    assert (verdict.verdict, found.outcome) == ("fixable", "fail")
    assert "GCC " + version in found.found and found.needed == "GCC >=13.0" and advice in found.fix


def test_host_compiler_and_nvccs_compiler_are_reported_apart_with_their_origin_C_73():
    cmds = {
        "%s -E -P -x c++ -" % name: gcc(version)
        for name, version in (("g++-14", "14.2.0"), ("/usr/bin/g++-12", "12.3.0"))
    }
    env = {"CC": "gcc-10", "CXX": "g++-14", "NVCC_CCBIN": "/usr/bin/g++-12"}
    verdict = judged(b200_host(env=env, cmds=cmds))
    host, cuda = finding(verdict, "compiler.host"), finding(verdict, "compiler.cuda_host")
    assert host.outcome == "pass" and "14.2.0" in host.found and "from CXX" in host.where
    assert cuda.outcome == "fail" and "12.3.0" in cuda.found and "from NVCC_CCBIN" in cuda.where
    assert outcomes(verdict) == {"compiler.cuda_host"}


@pytest.mark.parametrize("value", ["ccache g++", "g++ -m64"], ids=["C-73-launcher", "C-73-options"])
def test_a_compiler_variable_may_hold_a_launcher_or_options(value):
    verdict = judged(
        b200_host(
            env={"CXX": value}, cmds={value + " -E -P -x c++ -": gcc("14.2.0")}, files={"/usr/bin/ccache": "<exe>"}
        )
    )
    assert verdict.verdict == "eligible" and verdict.toolchain.compiler.words == value.split()


@pytest.mark.parametrize(
    "env",
    [
        {"SOME_URL": "https://proxy//workspace-proxy-1", "OTHER": "//host/share", "LS_COLORS": "*.gz=01;31"},
        {"LD_LIBRARY_PATH": "https://x:\x00:::/:relative", "CONDA_PREFIX": "https://conda"},
        {"HOME": "relative/home", "CONDA_PREFIX": "\n", "CUDA_DEVICE_ORDER": "?"},
        {"PATH": "/usr/local/cuda/bin:https://x:/usr/bin:~:$HOME/bin: :/bin"},
    ],
    ids=["C-74", "C-74-libraries", "C-74-home", "C-74-path"],
)
def test_values_that_are_no_paths_do_no_harm(env):
    assert judged(b200_host(env=env)).verdict == "eligible"
