"""tpu_vm.sh says the right commands to gcloud, and brings a run to its end whatever happens to the TPU."""

import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from fake_cloud import Cloud

SCRIPT = Path(__file__).parents[1] / "launch" / "tpu_vm.sh"
PLACE = ["--zone=z", "--project=p"]
NAME = ["--name=bert", *PLACE]
GCLOUD = ["gcloud", "compute", "tpus"]
FIND = [*GCLOUD, "queued-resources", "describe", "bert", "--format=value(state.state)", *PLACE]
FIND_VM = [*GCLOUD, "tpu-vm", "describe", "bert", "--format=value(state)", *PLACE]
CREATE = [
    *(*GCLOUD, "queued-resources", "create", "bert", "--node-id=bert", "--accelerator-type=v6e-8"),
    *("--runtime-version=v2-alpha-tpuv6e", "--spot"),
]
DELETE = [*GCLOUD, "queued-resources", "delete", "bert", "--force", "--quiet", *PLACE]
PATIENCE_SECONDS = 280  # of a machine that is busy with other work
OUTPUT = "--output_dir=gs://bucket/run"

needs_linux = pytest.mark.skipif(
    not all(map(shutil.which, ("flock", "setsid"))), reason="workers are Linux machines, with flock and setsid"
)


def ssh(command, worker="all"):
    return [*GCLOUD, "tpu-vm", "ssh", "bert", f"--worker={worker}", f"--command={command}", *PLACE]


def told(verb):
    return f"bash bert_jax/launch/tpu_worker.sh {verb}"


@pytest.fixture
def cloud(tmp_path):
    cloud = Cloud(tmp_path / "cloud")
    yield cloud
    cloud.end_runs()


@pytest.fixture
def tpu_vm(cloud):
    def call(*arguments):
        path = f"{cloud.root / 'bin'}:/usr/bin:/bin"
        return subprocess.run(
            ["bash", SCRIPT, *arguments], env={"PATH": path}, capture_output=True, text=True, timeout=PATIENCE_SECONDS
        )

    return call


@pytest.fixture
def planned(cloud, tpu_vm):
    """The commands of a dry run, in which none is made."""

    def plan(*arguments):
        if not cloud.root.exists():
            cloud.make()
        result = tpu_vm(*arguments, *([] if "--" in arguments else ["--dry_run"]))
        assert result.returncode == 0, result.stderr
        assert cloud.calls() == []
        return [shlex.split(line) for line in result.stdout.splitlines()]

    return plan


def test_create_asks_whether_it_is_there_and_waits(planned):
    commands = planned("create", *NAME, "--type=v6e-8", "--spot", "--create_flag=--network=my net")
    assert commands == [FIND, [*CREATE, "--network=my net", *PLACE], FIND, FIND_VM]


@pytest.mark.parametrize(
    ("kind", "version"),
    [
        ("v6e-8", "v2-alpha-tpuv6e"),
        ("v5p-16", "v2-alpha-tpuv5"),
        ("v5litepod-4", "v2-alpha-tpuv5-lite"),
        ("v4-32", "tpu-ubuntu2204-base"),
        ("v3-8", "tpu-ubuntu2204-base"),
    ],
)
def test_each_type_has_the_software_for_jax(planned, kind, version):
    assert f"--runtime-version={version}" in planned("create", *NAME, f"--type={kind}")[1]
    assert "--runtime-version=other" in planned("create", *NAME, f"--type={kind}", "--version=other")[1]


def test_install_copies_the_clone_to_all_workers(planned):
    pack, copy, unpack = planned("install", *NAME)
    assert pack[:2] == ["tar", "-czf"] and pack[3:5] == ["-C", str(SCRIPT.parents[1])]
    for part in pack[6:]:
        assert (SCRIPT.parents[1] / part).exists()
    assert copy == [*GCLOUD, "tpu-vm", "scp", pack[2], "bert:bert_jax.tar.gz", "--worker=all", *PLACE]
    assert unpack[:-3] == [*GCLOUD, "tpu-vm", "ssh", "bert", "--worker=all"]
    assert unpack[-3].endswith(" && bash bert_jax_new/launch/tpu_worker.sh install")


def test_other_verbs_tell_the_workers(planned):
    assert planned("logs", *NAME) == [ssh(told("logs"), 0)]
    assert planned("stop", *NAME) == [ssh(told("stop"))]
    assert planned("status", *NAME) == [FIND, ssh(told("status"))]
    assert planned("delete", *NAME) == [FIND, DELETE]
    assert "--internal-ip" in planned("stop", *NAME, "--internal_ip")[0]


def test_flags_reach_the_workers_as_they_are(cloud, tpu_vm):
    cloud.make()
    flags = ["--mode=fill_mask", "--text=it's  a [MASK] $HOME \"`!", "", "--text=a\n\nb\n", "*"]
    command = shlex.split(tpu_vm("start", *NAME, "--dry_run", "--", *flags).stdout)
    [said] = [word.partition("=")[2] for word in command if word.startswith("--command=")]
    assert shlex.split(said) == [*told("start").split(), "--", *flags]


def test_watch_does_all_in_turn(planned):
    commands = planned("watch", *NAME, "--type=v6e-8", "--spot", "--dry_run", "--", OUTPUT)
    status = ssh(told("status || echo bert_jax worker 0 of 1: not_installed"))
    assert commands[:5] == [FIND, [*CREATE, *PLACE], FIND, FIND_VM, status]
    assert [command[0] for command in commands[5:8]] == ["tar", "gcloud", "gcloud"]
    assert commands[8:] == [ssh(told(f"start -- {OUTPUT}")), FIND, FIND_VM, status]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "nothing is no verb"),
        (["begin", *NAME], "begin is no verb"),
        (["stop", "--zone=z"], "--name is missing"),
        (["stop", "--name=bert"], "--zone is missing"),
        (["stop", "--name", "--zone=z"], "--name needs a value: --name=VALUE"),
        (["stop", "--name=", "--zone=z"], "--name needs a value: --name=VALUE"),
        (["stop", "--name=My_TPU", "--zone=z"], "--name=My_TPU must be"),
        (["stop", *NAME, "--mode=pretrain"], "--mode=pretrain is no option of tpu_vm.sh"),
        (["stop", *NAME, "--", "--mode=pretrain"], "stop takes no flags of bert_jax"),
        (["stop", *NAME, "--spot"], "are for create and watch"),
        (["create", *NAME], "--type is missing"),
        (["create", *NAME, "--type=v99-8"], "--type=v99-8 is none that is known here (v6e-8, "),
        (["create", *NAME, "--type=v4-8", "--poll_seconds=soon"], "--poll_seconds=soon must be a whole number"),
        (["start", *NAME], "the flags of bert_jax are missing"),
        (["start", *NAME, "--"], "the flags of bert_jax are missing"),
        (["watch", *NAME, "--type=v4-8", "--", "--output_dir=here"], "watch needs --output_dir=gs://"),
    ],
)
def test_a_mistake_is_told_in_one_line(cloud, tpu_vm, arguments, message):
    cloud.make()
    result = tpu_vm(*arguments)
    assert result.returncode == 2
    assert result.stderr.startswith("error: ") and result.stderr.count("\n") == 1
    assert message in result.stderr
    assert result.stdout == "" and cloud.calls() == []


@pytest.mark.parametrize(
    ("flag", "warned"),
    [
        ("--input_file=store", True),
        ("--input_file store", True),
        ("--output_dir=runs/x", True),
        ("--output_dir gs://b/x", False),
        ("--input_file=gs://b/store", False),
        ("--input_file=tfds:wikipedia", False),
        ("--input_file=builtin", False),
    ],
)
def test_a_place_on_the_workers_is_warned_of(cloud, tpu_vm, flag, warned):
    cloud.make()
    result = tpu_vm("start", *NAME, "--dry_run", "--", "--mode=pretrain", *flag.split())
    assert result.returncode == 0
    assert (f"bert: warning: {flag.replace(' ', '=')} is a place on the disk of each worker" in result.stderr) == warned


@pytest.mark.parametrize("words", [["--output_dir=gs://b/x"], ["--output_dir", "gs://b/x"]])
def test_watch_takes_an_output_folder_in_one_word_or_two(cloud, tpu_vm, words):
    cloud.make()
    assert tpu_vm("watch", *NAME, "--type=v4-8", "--dry_run", "--", *words).returncode == 0


def test_help_has_all_options_and_verbs(cloud, tpu_vm):
    cloud.make()
    text = tpu_vm("--help").stdout
    source = SCRIPT.read_text()
    for option in ("name", "zone", "project", "type", "version", "spot", "create_flag", "internal_ip", "poll_seconds"):
        assert f"\n  --{option}" in text and f"    --{option}" in source


def test_create_is_done_when_it_is_there(cloud, tpu_vm):
    cloud.make(states=["ACTIVE"], vm="READY")
    result = tpu_vm("create", *NAME, "--type=v4-8")
    assert result.returncode == 0 and result.stderr == "bert: ACTIVE\n"
    assert cloud.verbs() == []


def test_create_waits_until_it_is_there(cloud, tpu_vm):
    cloud.make(creations=[["WAITING_FOR_RESOURCES", "WAITING_FOR_RESOURCES", "PROVISIONING", "ACTIVE"]])
    result = tpu_vm("create", *NAME, "--type=v4-8", "--poll_seconds=0")
    assert result.returncode == 0
    states = ["ABSENT", "WAITING_FOR_RESOURCES", "PROVISIONING", "ACTIVE"]
    assert result.stderr == "".join(f"bert: {state}\n" for state in states)
    assert cloud.verbs() == ["create"]


@pytest.mark.parametrize("state", ["SUSPENDED", "FAILED"])
def test_create_replaces_what_is_dead(cloud, tpu_vm, state):
    cloud.make(states=[state])
    assert tpu_vm("create", *NAME, "--type=v4-8", "--poll_seconds=0").returncode == 0
    assert cloud.verbs() == ["delete", "create"]


def test_create_replaces_an_active_one_whose_vm_was_preempted(cloud, tpu_vm):
    cloud.make(states=["ACTIVE", "ACTIVE"], vm="PREEMPTED")
    assert tpu_vm("create", *NAME, "--type=v4-8", "--poll_seconds=0").returncode == 0
    assert cloud.verbs() == ["delete", "create"]


def test_create_tells_that_it_failed(cloud, tpu_vm):
    cloud.make(creations=[["PROVISIONING", "FAILED"]])
    result = tpu_vm("create", *NAME, "--type=v4-8", "--poll_seconds=0")
    assert result.returncode == 1
    assert "error: bert is FAILED: gcloud compute tpus queued-resources describe bert --zone=z" in result.stderr
    assert cloud.verbs() == ["create"]


def test_delete_of_what_is_absent_is_fine(cloud, tpu_vm):
    cloud.make()
    result = tpu_vm("delete", *NAME)
    assert result.returncode == 0 and result.stderr == "bert: there is none\n"
    cloud.change(states=["ACTIVE"])
    assert tpu_vm("delete", *NAME).returncode == 0
    assert cloud.verbs() == ["delete"] and cloud.state["states"] == ["ABSENT"]


@pytest.mark.parametrize("verb", ["create --type=v4-8", "status", "delete"])
def test_another_error_of_gcloud_is_told(cloud, tpu_vm, verb):
    cloud.make()
    (cloud.root / "bin/gcloud").write_text("#!/bin/sh\necho 'ERROR: (gcloud) you do not have access' >&2\nexit 1\n")
    verb, *options = verb.split()
    result = tpu_vm(verb, *NAME, *options)
    assert result.returncode == 1
    assert result.stderr == "error: gcloud: ERROR: (gcloud) you do not have access\n"


def test_a_missing_gcloud_is_told(tmp_path):
    for tool in ("bash", "dirname", "sed"):
        (tmp_path / tool).symlink_to(shutil.which(tool))
    result = subprocess.run(
        [tmp_path / "bash", SCRIPT, "stop", *NAME], env={"PATH": str(tmp_path)}, capture_output=True, text=True
    )
    assert result.returncode == 2 and "gcloud is not installed" in result.stderr


def watching(cloud):
    watch = ["bash", SCRIPT, "watch", *NAME, "--type=v4-8", "--poll_seconds=0", "--", OUTPUT]
    environment = {"PATH": f"{cloud.root / 'bin'}:/usr/bin:/bin"}
    return subprocess.Popen(watch, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def wait_for(process, line):
    assert any(said == line for said in process.stderr), "ended before"


@needs_linux
def test_a_run_on_two_hosts_from_install_to_stop(cloud, tpu_vm):
    cloud.make(workers=2, states=["ACTIVE"], vm="READY")
    status = lambda: sorted(tpu_vm("status", *NAME).stdout.splitlines())
    flags = ["--mode=pretrain", "--text=it's  a $HOME", OUTPUT]

    def all_are(state):
        return [f"bert_jax worker {index} of 2: {state}" for index in range(2)] + ["bert: ACTIVE"]

    assert tpu_vm("start", *NAME, "--", *flags).returncode != 0  # nothing is there to start
    assert tpu_vm("install", *NAME).returncode == 0
    assert (cloud.root / "disks/1/bert_jax/launch/recipes/glue.flags").exists()
    installs = (cloud.bucket / "installs").read_text()
    assert "pip install --quiet --python=" in installs and installs.count("/bert_jax[tpu]\n") == 2
    assert status() == sorted(all_are("not_started"))

    assert tpu_vm("start", *NAME, "--", *flags).returncode == 0
    assert status() == sorted(all_are("running"))
    # They find each other by the metadata, as hosts of several slices do.
    assert cloud.commands() == [["-m", "bert_jax.main", *flags]] * 2
    assert "runs already" in tpu_vm("start", *NAME, "--", *flags).stdout
    assert "a run is in progress: stop it" in tpu_vm("install", *NAME).stderr
    assert len(cloud.commands()) == 2

    assert tpu_vm("stop", *NAME).returncode == 0
    assert status() == sorted(all_are("stopped"))
    assert tpu_vm("stop", *NAME).returncode == 0
    assert len(cloud.commands()) == 2


@needs_linux
def test_how_runs_end_is_known(cloud, tpu_vm):
    cloud.make(states=["ACTIVE"], vm="READY")
    tpu_vm("install", *NAME)
    for code, state in ((0, "finished"), (1, "failed 1"), (2, "failed 2"), (75, "interrupted")):
        (cloud.bucket / "exit").write_text(str(code))
        assert tpu_vm("start", *NAME, "--", OUTPUT).returncode == 0
        for _ in range(100):
            if "running" not in (said := tpu_vm("status", *NAME).stdout):
                break
        assert said == f"bert: ACTIVE\nbert_jax worker 0 of 1: {state}\n"
    assert cloud.commands() == [["-m", "bert_jax.main", OUTPUT]] * 4


@needs_linux
def test_watch_brings_a_run_through_preemptions_to_its_end(cloud, tpu_vm):
    queued = ["WAITING_FOR_RESOURCES", "ACTIVE"]
    cloud.make(workers=2, creations=[queued, ["FAILED"], queued, queued], preempt_at=[3, 6], finish_at=9)
    result = tpu_vm("watch", *NAME, "--type=v4-16", "--spot", "--poll_seconds=0", "--", "--mode=pretrain", OUTPUT)
    assert result.returncode == 0, result.stderr
    assert result.stderr.endswith("bert: the run is finished\n")
    begin = ["create", "install", "start"]
    # After the first preemption the request for a new TPU fails once.
    assert cloud.verbs() == [*begin, "delete", "create", "delete", *begin, "delete", *begin]
    assert cloud.commands() == [["-m", "bert_jax.main", "--mode=pretrain", OUTPUT]] * 6


@needs_linux
def test_what_was_not_installed_to_its_end_is_installed_again(cloud, tpu_vm):
    cloud.make(finish_at=3)
    (cloud.bucket / "broken").touch()
    result = tpu_vm("watch", *NAME, "--type=v4-8", "--poll_seconds=0", "--", OUTPUT)
    assert result.returncode == 0, result.stderr
    assert cloud.verbs() == ["create", "install", "install", "start"]
    (cloud.bucket / "broken").touch()  # an update that fails
    assert tpu_vm("install", *NAME).returncode != 0
    assert "not_installed" in tpu_vm("status", *NAME).stdout


@needs_linux
def test_watch_goes_on_when_a_worker_was_lost_for_a_while(cloud, tpu_vm):
    """A host that is restarted knows no exit code of its run; the runs of the others failed with it."""
    cloud.make(workers=2, states=["ACTIVE"], vm="READY")
    tpu_vm("install", *NAME)
    tpu_vm("start", *NAME, "--", OUTPUT)
    process = watching(cloud)
    wait_for(process, "bert: running\n")
    cloud.end_runs()
    (cloud.root / "disks/0/bert_jax_run/exit_code").write_text("1")
    wait_for(process, "bert: running\n")
    cloud.change(finish_at=cloud.state["statuses"] + 3)
    assert process.wait(PATIENCE_SECONDS) == 0
    assert len(cloud.commands()) == 4


@needs_linux
@pytest.mark.parametrize(("code", "message"), [(1, "the run failed with exit code 1: see logs"), (2, "exit code 2")])
def test_watch_ends_with_a_run_that_failed(cloud, tpu_vm, code, message):
    cloud.make()
    (cloud.bucket / "exit").write_text(str(code))
    result = tpu_vm("watch", *NAME, "--type=v4-8", "--poll_seconds=0", "--", OUTPUT)
    assert result.returncode == code and message in result.stderr
    assert cloud.verbs() == ["create", "install", "start"]


@needs_linux
def test_watch_ends_when_the_run_is_stopped_and_begins_it_again(cloud, tpu_vm):
    cloud.make()
    for runs in (1, 2):
        process = watching(cloud)
        wait_for(process, "bert: running\n")
        assert tpu_vm("stop", *NAME).returncode == 0
        assert "stopped, with everything saved" in process.communicate(timeout=PATIENCE_SECONDS)[1]
        assert process.returncode == 75
        assert len(cloud.commands()) == runs
