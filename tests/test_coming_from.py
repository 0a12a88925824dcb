"""Promises of the pages docs/coming-from-*.md: they answer everything that is typed in the published systems, and what
they say is a setting is one. Files of their own run the commands of each page."""

import pytest

from cases import case
from numerate.vocabulary import Vocabulary
from pages import Page, set_one

KEYS = {
    "coming-from-arithmetic.md": """
    name base_dir budget overall_budget seed dryrun data arch objective_layout layers_in_recurrent_block
    maximal_recurrence max_backprop maximal_recurrence_in_eval hidden_size intermed_size input_injection_type
    initial_hidden_randomized state_init norm norm_scheme nonlin tie_weights final_norm head throttle alpha
    mask_before_equals local_compilation loss_reduction forward_only_model_with_skip pos_embedding max_seq_length
    max_abacus_len normalization type rotary_embedding max_length num_attention_heads sequence_op microbatch_size
    compile_torch fullgraph mixed_precision save_intermediate_checkpoints save_every_nth_step save_every_n_minutes
    save_intermediate_model_name save_final_model forbid_dataset_preprocessing print_loss_every_nth_step threads path
    early_termination lr batch_size batch_size_ramp warmup_steps cooldown_steps steps scheduler gradient_clipping
    tokenized_dataset_path tokenizer_type reverse_inputs extended_eval greedy temp token_limit max_rec remove_padding
    large ood_only up_to_40 up_to_50 checkerboard big_eval_step_ max_size_given start_ind_1_given start_ind_2_given mul
    pos_arth pos_arth_ood pad_zeros checkpoint arch_modifications
    create_data_split.py create_pos_or_variants.py pretrain.py torchrun arithmetic_eval_quicker.py sort_eval.py
    gen_eval_script.py pretty_plotter.py pretty_plotter_big.py pretty_plotter_sort.py dataset_analysis.py
    upload_processed_dataset.py load_local_model.py cramming_base_dir wandb.entity wandb.project abacus
    addition_ff.sh addition_lt.sh multiplication.sh bitwise_or.sh sorting.sh
    """,
    "coming-from-inductive-counting.md": """
    seed date hf_cache_dir num_hidden_layers vocab task aux_tasks hidden_size num_attention_heads mlp_dim_multipler
    max_position_embeddings max_seq_len freeze_null_emb layer_norm_epsilon scale_attn_weights
    scale_attn_by_inverse_layer_idx resid_pdrop embd_pdrop attn_pdrop must_attend_to_identity tie_word_embeddings
    activation_function initializer_range max_grad_norm output_dir ckpt_dir train_data_path eval_data_path test_files
    per_device_train_batch_size per_device_eval_batch_size gradient_accumulation_steps eval_accumulation_steps
    logging_steps warmup_steps learning_rate num_epochs eval_every_steps absolute_posemb rotary_posemb scaler_posemb
    sinusoidal_posemb _shift _rdmz _freeze _initfromsine zooming load_from_dir init_from_ckpt model dropout
    weight_decay precision
    accelerate run.py tester.py tester_bulk.py config.py causal_transformer s4 mamba rwkv-v5 --task --cuda --port
    --handle --test_files
    """,
    "coming-from-dual-attention.md": """
    download pretokenize train_vocab --vocab_size tiny_stories_data.py train.py torchrun fineweb_data.py
    pretrain.py create_tiny_stories_lm_jobs.ipynb
    --sa --ra --symbol_type symbolic_attention position_relative NA --pos_enc_type RoPE pos_emb --ra_type
    relational_attention rca disrca --n_layers --d_model --activation --dropout_rate --dff --norm_first
    --symmetric_rels --trainable_symbols --max_seq_len --n_epochs --max_iters --batch_size
    --gradient_accumulation_steps --learning_rate --use_cosine_sched --eval_interval --eval_iters --eval_only
    --log_to_wandb --always_save_checkpoint --compile --init_from --wandb_project
    --wandb_log --wandb_watch --wandb_fork_run_id --run_name --total_batch_size --B --T --max_block_size --max_lr
    --min_lr --warmup_steps --weight_decay --betas --grad_clip --train_log_interval --val_loss_steps
    --save_checkpoints --save_interval --generate_during_training --gen_interval --hellaswag_during_training
    --hellaswag_interval --track_grad_norms --max_steps --use_tf32_matmul --use_bf16 --n_kv_heads --n_relations
    --share_attn_params --rel_activation --shared_symbol_retriever --weight_tie_symbol_library --sym_attn_n_symbols
    --sym_attn_n_heads --norm_type --bias --resume --job_duration --seed
    generate max_new_tokens temperature top_k lm_inference_app lm_visualization_app push_to_hub ckpt.pt
    DualAttnTransformerLM_HFHub DualAttnTransformerLM TransformerLM DualAttention RelationalAttention
    RelationalCrossAttention DisentangledRelationalCrossAttention Attention SymbolicAttention
    PositionalSymbolRetriever PositionRelativeSymbolRetriever RelationalSymbolicAttention DualAttnEncoderBlock
    EncoderBlock FeedForwardBlock DualAttnDecoderBlock DecoderBlock Seq2SeqDualAttnTransformer Seq2SeqTransformer
    VisionDualAttnTransformer VisionTransformer configure_optimizers
    """,
    "coming-from-number-token-loss.md": """
    conda pip WANDB_ENTITY WANDB_PROJECT docker create_data_splits.py arith_create_splits.py generate_dataset.py
    preprocess_data.py run_language_modeling.py train.py nohup results_sorting.py
    vanilla_t5 vanilla_t5_ntl vanilla_t5_custom_tokenizer vanilla_t5_ntl_default_tokenizer vanilla_t5_regression_head rt
    rt_ntl xval mathematics_dataset mathematcis_dataset arithmetic gsm8k multirc rjokes multiplication debug cnn config
    mathematics_dataset_run gm8k_runs gsm8k_runs t5_big training_with_warmup debug_config
    default_CE NTL-MSE_Lambda0.3 NTL-MSE_Lambda0.8 NTL-MSE_Lambda2.0 NTL-WAS_Lambda0.3 NTL-WAS_Lambda0.8
    NTL-WAS_Lambda2.0 NTL-MAE_Lambda0.3 NTL-Huber_Lambda0.3 gaussian_ce_sigma1 gaussian_ce_sigma2
    GaussianCE_sigma1_NTL-WAS_Lambda0.3 GaussianCE_sigma2_NTL-WAS_Lambda0.3 lambda2 nlp_task_run
    seed remove_unused_columns load_best_model_at_end eval_strategy batch_eval_metrics metric_for_best_model
    greater_is_better output_dir learning_rate lr_scheduler_type factor patience weight_decay max_steps save_total_limit
    save_steps eval_steps per_device_train_batch_size per_device_eval_batch_size logging_steps report_to eval_on_start
    do_only_eval parallel_mode trial special_name language_modelling name model_name_or_path model_type config_name
    tokenizer_name tokenizer_type cache_dir number_encoding none_regression_head number_token_loss
    number_token_loss_with_wasserstein number_token_loss_weight number_token_loss_function gaussian_label_smoother
    label_smoother_sigma log_scale_embeddings xval_bigger_language_head train_with_augmented_data dataset_name mode
    compute_number_metrics model_args dataset_args training_args run_specific_config num_beams
    number_accuracy MAE MSE median_absolute_error R2 pearson spearman log_mae log_r2 token_accuracy
    token_accuracy_whole token_perplexity bleu rouge1 rouge2 rougeL count_invalid_number_prediction
    average_invalid_number_prediction count_no_number_prediction average_no_number_prediction
    count_not_produced_valid_results average_count_not_produced_valid_results eval_loss eval_token_loss
    eval_number_loss
    """,
}
"""What users of the published systems type and read: commands, scripts, settings, options, classes, metrics."""

SETTINGS = [
    ("coming-from-arithmetic.md", "addition_lt_abacus_4x4", ["Settings and switches"]),
    ("coming-from-inductive-counting.md", "counting_samesymbol_mod10_ape", ["Config keys"]),
    ("coming-from-number-token-loss.md", "mathematics_t5_ntl_was", ["Config keys"]),
    (
        "coming-from-dual-attention.md",
        "tiny_stories_d64_l4_4+4_symbolic",
        ["Arguments of train.py", "The package dual-attention", "Faults that are not here"],
    ),
    (
        "coming-from-dual-attention.md",
        "fineweb_edu_dual_343m",
        ["Arguments of fineweb/pretrain.py", "Loading their checkpoints"],
    ),
]
"""Of each page sections with settings, and the recipe that these are for."""


@pytest.mark.parametrize(("name", "recipe_name", "sections"), SETTINGS)
def test_the_settings_of_a_page_are_settings(
    name: str, recipe_name: str, sections: list[str], vocabulary: Vocabulary
) -> None:
    if "arithmetic" not in name and "counting" not in name:
        pytest.importorskip("transformers", reason="the extra huggingface is not installed")
    found = Page(name).settings(*sections)
    assert found
    for text in found:
        with case(text):
            recipe = set_one(text, recipe_name)
            if text.startswith("model") and recipe_name.startswith("tiny_stories"):
                recipe.model.build(vocabulary, 0)


@pytest.mark.parametrize("name", KEYS)
def test_everything_published_stands_on_the_page_and_is_answered(name: str) -> None:
    page = Page(name)
    assert page.missing(KEYS[name]) == []
    assert page.unanswered() == [], "lines whose middle column is no command, setting or none"
