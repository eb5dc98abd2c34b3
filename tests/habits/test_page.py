"""Every habit on the page for users of PyTorch is run by a test."""

import ast
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
ROW = re.compile(r"^\| (.+?) \| .+ \|$", re.MULTILINE)

PROVED_BY = {
    "habits/test_program.py": {
        "parse_args": "workers_and_resumed_runs_have_the_options_of_the_program",
        "configuration objects": "workers_have_the_globals_that_the_program_has_set",
        "an open file": "a_global_that_cannot_be_given_to_workers_is_refused_by_name",
        "python -m": "a_package_is_started_as_a_module",
        "`pickle`": "classes_of_a_program_are_those_of_main_in_its_workers",
        "without a main guard": "a_run_that_starts_on_import_of_a_module_is_refused",
        "nohup": "a_run_under_nohup_goes_on_when_its_terminal_is_closed",
        "`HOME`": "a_run_needs_no_home_no_user_name_and_no_standard_streams",
    },
    "habits/test_data.py": {
        "without `shuffle`": "a_loader_that_does_not_shuffle_is_read_in_order",
        "a sampler of your own": "a_kill_and_a_resume_keep_the_order_of_a_sampler",
        "damaged samples": "samples_that_a_collate_function_drops_weigh_nothing",
        "`os.listdir`": "data_that_differ_between_workers_are_refused",
    },
    "data/test_sampler_order.py": {
        "`shuffle=True`": "shuffling_and_plain_data_have_the_order_of_the_run",
        "`DistributedSampler`": "a_sampler_that_a_run_cannot_use_is_refused_by_name",
    },
    "runs/test_any_world_size.py": {
        "Augmentation": "other_workers_continue_with_the_same_tensors_and_samples",
    },
    "habits/test_gradients.py": {
        "`clip_grad_norm_`": "clipping_a_shards_gradient_is_refused",
        "Gradient noise": "a_gradient_hook_draws_the_same_noise_on_all_workers_and_after_a_kill",
        "`p.register_hook": "hooks_of_parameters_get_the_gradient_of_the_batch",
        "weights of its own": "what_one_worker_would_train_alone_is_refused",
        "Gradient penalties": "a_loss_may_depend_on_inputs_averages_and_checkpoints",
        "`except RuntimeError: continue`": "a_shard_whose_error_is_caught_adds_nothing",
        "no label": "shards_without_weight_leave_the_loss_of_the_others",
        "float64": "kinds_of_tensors_train_as_in_plain_pytorch",
        "`LBFGS`": "optimizers_of_other_kinds_are_refused_by_name",
    },
    "worker/test_steppers.py": {
        "Logging": "a_shards_gradient_can_be_read_and_kept",
        "`optimizer.zero_grad()`": "clearing_all_gradients_after_backward_changes_nothing",
    },
    "runs/test_mistakes.py": {
        "`loss.backward()`": "a_mistake_is_named_with_the_line_that_makes_it",
    },
    "habits/test_state.py": {
        "`get_extra_state`": "extra_state_is_resumed_and_exported",
        "Several optimizers": "nested_optimizers_and_their_numbers_are_resumed",
        "next to those of `attach`": "state_that_would_be_lost_is_refused",
        "`losses = session.state": "other_names_of_parts_of_the_state_stay_part_of_it",
        "Counters in globals": "variables_of_a_function_are_no_state",
        "`torch.compile`": "names_are_those_of_the_model_that_is_not_compiled",
        "`DataParallel`": "state_that_would_be_lost_is_refused",
    },
    "models/test_huggingface.py": {
        "Adapters of peft": "exported_adapters_are_those_that_peft_saves",
    },
    "habits/test_stop.py": {
        "in a long evaluation": "a_stop_in_an_evaluation_saves_what_is_committed",
        "before the first step": "a_stop_before_the_first_step_ends_the_run",
    },
}
"""The test of each habit, which is known by words of its row."""


def test_every_habit_has_a_test_and_every_test_a_habit():
    page = TESTS.parent / "docs" / "from-pytorch.md"
    habits = [habit for habit in ROW.findall(page.read_text()) if habit not in ("Habit", "---")]
    words = [each for tests in PROVED_BY.values() for each in tests]
    assert [habit for habit in habits if sum(each in habit for each in words) != 1] == []
    assert [each for each in words if not any(each in habit for habit in habits)] == []


@pytest.mark.parametrize("file", PROVED_BY)
def test_the_test_of_a_habit_exists(file):
    tree = ast.parse((TESTS / file).read_text())
    tests = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    assert {f"test_{each}" for each in PROVED_BY[file].values()} <= tests
