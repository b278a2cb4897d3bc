"""Signatures of NNI's constructors: the parameters of each class, by generation.

Classes are listed under their current names. If a class has several forms, they are distinguished by the
types of the arguments.
"""

from __future__ import annotations

from lilliput.compat.nni.classes.arguments import Form, form

_PLAIN = (form("model, config_list, optimizer"),)
_FILTERS = (form("model, config_list, optimizer, dependency_aware=False, dummy_input"),)
_COLLECTING = (
    form(
        "model, config_list, optimizer, statistics_batch_num=1, dependency_aware=False, dummy_input"
    ),
    form(
        "model, config_list, optimizer, trainer, criterion, sparsifying_training_batches=1, "
        "dependency_aware=False, dummy_input"
    ),
    form(
        "model, config_list, optimizer, trainer, criterion, sparsifying_training_batches=1, "
        "global_sort=False, dependency_aware=False, dummy_input"
    ),
)
_ACTIVATIONS = (
    form(
        "model, config_list, optimizer, activation='relu', statistics_batch_num=1, "
        "dependency_aware=False, dummy_input"
    ),
    form(
        "model, config_list, optimizer, trainer, criterion, activation='relu', "
        "sparsifying_training_batches=1, dependency_aware=False, dummy_input"
    ),
)
_SCHEDULED = (
    form("model, config_list, optimizer, pruning_algorithm='level'"),
    form(
        "model, config_list, optimizer, trainer, criterion, num_iterations=10, "
        "epochs_per_iteration=1, pruning_algorithm='level'"
    ),
)
_SLIM = (
    form("model, config_list, optimizer, dependency_aware=False, dummy_input"),
    form(
        "model, config_list, optimizer, trainer, criterion, sparsifying_training_epochs=10, "
        "scale=0.0001, dependency_aware=False, dummy_input"
    ),
)
_ANNEALING = (
    "start_temperature=100, stop_temperature=20, cool_down_rate=0.9, perturbation_magnitude=0.35"
)
_FIRST = {
    "NetAdaptPruner": (
        form(
            "model, config_list, short_term_fine_tuner, evaluator(), optimize_mode='maximize', "
            "base_algo='l1', sparsity_per_iteration=0.05, experiment_data_dir='./'"
        ),
    ),
    "SimulatedAnnealingPruner": (
        form(
            f"model, config_list, evaluator(), optimize_mode='maximize', base_algo='l1', {_ANNEALING}, "
            "experiment_data_dir='./'"
        ),
    ),
    "AutoCompressPruner": (
        form(
            "model, config_list, trainer, evaluator(), dummy_input, num_iterations=3, "
            f"optimize_mode='maximize', base_algo='l1', {_ANNEALING}, admm_num_iterations=30, "
            "admm_training_epochs=5, row=0.0001, experiment_data_dir='./'"
        ),
        form(
            "model, config_list, trainer, evaluator(), dummy_input, criterion, num_iterations=3, "
            f"optimize_mode='maximize', base_algo='l1', {_ANNEALING}, admm_num_iterations=30, "
            "admm_epochs_per_iteration=5, row=0.0001, experiment_data_dir='./'"
        ),
    ),
    "AMCPruner": (
        form(
            "model, config_list, evaluator(), val_loader, suffix, model_type='mobilenet', "
            "dataset='cifar10', flops_ratio=0.5, lbound=0.2, rbound=1.0, reward='acc_reward', "
            "n_calibration_batches=60, n_points_per_layer=10, channel_round=8, hidden1=300, "
            "hidden2=300, lr_c=0.001, lr_a=0.0001, warmup=100, discount=1.0, bsize=64, rmsize=100, "
            "window_length=1, tau=0.01, init_delta=0.5, delta_decay=0.99, max_episode_length=1e9, "
            "output_dir='./logs', debug=False, train_episode=800, epsilon=50000, seed"
        ),
    ),
    "LevelPruner": _PLAIN,
    "L1NormPruner": _FILTERS,
    "L2NormPruner": _FILTERS,
    "FPGMPruner": _FILTERS,
    "SlimPruner": _SLIM,
    "TaylorFOWeightPruner": _COLLECTING,
    "ActivationAPoZRankPruner": _ACTIVATIONS,
    "ActivationMeanRankPruner": _ACTIVATIONS,
    "AGPPruner": _SCHEDULED,
    "ADMMPruner": (
        form(
            "model, config_list, trainer, criterion, num_iterations=30, epochs_per_iteration=5, "
            "row=0.0001, base_algo='l1'"
        ),
        form(
            "model, config_list, trainer, num_iterations=30, training_epochs=5, row=0.0001, "
            "base_algo='l1'"
        ),
    ),
    "LotteryTicketPruner": (
        form("model, config_list, optimizer, lr_scheduler, reset_weights=True"),
    ),
    "QATQuantizer": (form("model, config_list, optimizer, dummy_input"),),
    "LSQQuantizer": (form("model, config_list, optimizer, dummy_input"),),
    "PTQQuantizer": _PLAIN,
}

_OLD = "trainer, traced_optimizer, criterion"
_NORMS = (form("model, config_list, mode='normal', dummy_input"),)
_ITERATIVE = (
    form(
        "model, config_list, pruning_algorithm, total_iteration, log_dir='.', "
        "keep_intermediate_result=False, evaluator, speedup=False, pruning_params"
    ),
    form(
        "model, config_list, pruning_algorithm, total_iteration, log_dir='.', "
        "keep_intermediate_result=False, finetuner, speedup=False, dummy_input, evaluator(), "
        "pruning_params"
    ),
)
_SECOND = {
    "LevelPruner": (form("model, config_list, mode='normal', balance_gran"),),
    "L1NormPruner": _NORMS,
    "L2NormPruner": _NORMS,
    "FPGMPruner": _NORMS,
    "SlimPruner": (
        form("model, config_list, evaluator, training_epochs, scale=0.0001, mode='global'"),
        form(f"model, config_list, {_OLD}, training_epochs, scale=0.0001, mode='global'"),
    ),
    "TaylorFOWeightPruner": (
        form("model, config_list, evaluator, training_steps, mode='normal', dummy_input"),
        form(f"model, config_list, {_OLD}, training_batches, mode='normal', dummy_input"),
    ),
    **{
        name: (
            form(
                "model, config_list, evaluator, training_steps, activation='relu', mode='normal', "
                "dummy_input"
            ),
            form(
                f"model, config_list, {_OLD}, training_batches, activation='relu', mode='normal', "
                "dummy_input"
            ),
        )
        for name in ("ActivationAPoZRankPruner", "ActivationMeanRankPruner")
    },
    "AGPPruner": _ITERATIVE,
    "LinearPruner": _ITERATIVE,
    "SimulatedAnnealingPruner": (
        form(
            f"model, config_list, evaluator(), {_ANNEALING}, pruning_algorithm='level', pruning_params, "
            "log_dir='.', keep_intermediate_result=False, finetuner, speedup=False, dummy_input"
        ),
        form(
            f"model, config_list, evaluator(), {_ANNEALING}, pruning_algorithm='level', pruning_params, "
            "log_dir='.', keep_intermediate_result=False, speedup=False"
        ),
    ),
    "AutoCompressPruner": (
        form(
            "model, config_list, total_iteration, admm_params, sa_params, log_dir='.', "
            "keep_intermediate_result=False, finetuner, speedup=False, dummy_input, evaluator()"
        ),
        form(
            "model, config_list, total_iteration, admm_params, sa_params, log_dir='.', "
            "keep_intermediate_result=False, evaluator, speedup=False"
        ),
    ),
    "AMCPruner": (
        form(
            "total_episode, model, config_list, dummy_input, evaluator(), pruning_algorithm='l1', "
            "log_dir='.', keep_intermediate_result=False, finetuner, ddpg_params, pruning_params, "
            "target='flops'"
        ),
        form(
            "total_episode, model, config_list, dummy_input, evaluator(), pruning_algorithm='l1', "
            "log_dir='.', keep_intermediate_result=False, ddpg_params, pruning_params, target='flops'"
        ),
    ),
    "ADMMPruner": (
        form(
            "model, config_list, evaluator, iterations, training_epochs, granularity='fine-grained'"
        ),
        form(
            f"model, config_list, {_OLD}, iterations, training_epochs, granularity='fine-grained'"
        ),
    ),
    "LotteryTicketPruner": (
        form(
            "model, config_list, pruning_algorithm, total_iteration, log_dir='.', "
            "keep_intermediate_result=False, evaluator, speedup=False, reset_weight=True, pruning_params"
        ),
        form(
            "model, config_list, pruning_algorithm, total_iteration, log_dir='.', "
            "keep_intermediate_result=False, finetuner, speedup=False, dummy_input, evaluator(), "
            "reset_weight=True, pruning_params"
        ),
    ),
    "MovementPruner": (
        form(
            "model, config_list, evaluator, warm_up_step, cool_down_beginning_step, training_epochs, "
            "training_steps, regular_scale, movement_mode='hard', sparse_granularity='finegrained'"
        ),
        form(
            f"model, config_list, {_OLD}, training_epochs, warm_up_step, cool_down_beginning_step"
        ),
    ),
}

_EVALUATED = (form("model, config_list, evaluator, existed_wrappers"),)
_THIRD: dict[str, tuple[Form, ...]] = {
    **dict.fromkeys(("LevelPruner", "L1NormPruner", "L2NormPruner", "FPGMPruner"), _EVALUATED),
    "TaylorFOWeightPruner": (form("model, config_list, evaluator, training_steps"),),
    "MovementPruner": (
        form(
            "model, config_list, evaluator, warmup_step, cooldown_begin_step, regular_scale=1.0, "
            "existed_wrappers"
        ),
    ),
    "SlimPruner": (form("model, config_list, evaluator, training_steps, regular_scale=1.0"),),
    "QATQuantizer": (form("model, config_list, evaluator, quant_start_step=0"),),
    "PTQQuantizer": (form("model, config_list, evaluator, is_bias_correction=False"),),
    "LSQQuantizer": (form("model, config_list, evaluator"),),
    "LSQPlusQuantizer": (form("model, config_list, evaluator"),),
    "DoReFaQuantizer": (form("model, config_list, evaluator"),),
    "BNNQuantizer": (form("model, config_list, evaluator"),),
}

FORMS: dict[str, dict[str, tuple[Form, ...]]] = {
    "first": _FIRST,
    "second": {**_FIRST, **_SECOND},
    "third": _THIRD,
}
