"""What parts and settings of 0.1 are called now, for errors that answer an old name."""

_RENAMED = """
Aligned=TokenClassification Jokes=RJokes LanguageModelling=LanguageModeling Masked=MaskedLM
MathematicsStandIn=GeneratedMathematics Pair=Seq2Seq Reading=MultiRC Text=NextToken Trapezoid=WarmupStableDecay
Triangle=OneCycle WordProblems=GSM8K Written=ExampleFile XVal=XValLoss accumulate=gradient_accumulation_steps
adapter=head_projection answer=answer_field|answer_format answer_zeros=answer_leading_zeros ask=targets asked=targets
asked_only=targets_only at=eval_count at_once=array_parallelism batch=batch_size batches=validation_batches
before_answer=answer_prefix begin=initialization|prefix|add_bos_token beginning=initialization best_by=best_metric
biases=bias big_digits=ood_digits blanks=space_probability buckets=num_buckets cells=state_size|hidden_size
checkpointing=gradient_checkpointing chunks=array_tasks clip=max_grad_norm closed=write_gate_offset
context=max_position_embeddings|context_length convolution=conv_kernel count=examples_per_cell|num_symbols
cpus=num_cpus|cpus_per_task cut=factor|truncation_side decay=weight_decay decay_from=decay_start decay_until=decay_end
decays=decay_parameters decimals=fraction_digits decoder_depth=num_decoder_layers depth=num_layers
development=validation_fraction development_file=validation_file development_rows=validation_rows deviation=std
digits=number_tokens|integer_digits divided=scaled_projection division=split_seed drops=dropout_on
during=validation_examples eigenvalues=eigenvalue_range|initialization embeddings=embedding_std end=source_eos
ends=end epsilon=eps evaluate_at=num_eval_offsets evaluate_start=evaluate_at_start extra=sbatch_options
extrapolation=extrapolation_modules farthest=max_distance first=digit_order floor=min_lr_ratio folder=data_dir
forget=forget_gate form=loss_function|backend|encoding_type format=dtype further=extra_tests gelu=gelu_approximate
gigabytes=mem_gb gpus=num_gpus|gpus_per_task head_width=head_dim heads=num_heads held=held_out_starts
helpers=helper_positions hidden=intermediate_size|hidden_size hidden_see_themselves=blocked_attend_to_themselves
hide=blocked_tokens hints=index_hints householders=num_householder ids=vocabulary initialisation=initialization
inject=input_injection inner=intermediate_size interleave=interleave_operands items=num_symbols
keep=keep_checkpoints|vocabulary kernel=backend key_value_heads=num_key_value_heads largest=max_value
later_too=future_distances layer_norms=log_layer_grad_norms layer_scale=scale_by_inverse_layer_index
layers=sharing|num_layers least=r_min length=sequence_length log_from=log_scale_start longest=max_initial_memory
mask=mask_token most=r_max|max_positions|max_examples|max_number|max_count|max_length
most_with_gradient=max_grad_loops multiple=pad_to_multiple_of norm_epsilon=norm_eps normalised=normalized
number=residual_count|start_number numbering=position_ids numbers=number_format only=task_index
operands=operand_digit_order operations=flops order=digit_order out_biases=out_bias outward=residual_scale
over=mean_over pairs=state_pairs part=micro_batch_size per=offset_per|subset_per per_chunk=items_per_task
phase=max_phase place_base=digit_weight_ratio places=max_position_embeddings|max_positions|num_masks|min_digits
positive=positive_candidates project=output_projection published=published_initialization question=question_field
ramp=batch_size_warmup ramp_from=initial_batch_size rank=time_step_rank rate=learning_rate|learning_rate_factor
reads=read_at relation_width=relation_dim relational_heads=num_relational_heads relations=num_relations
repeats=keep_duplicates requeues=max_requeues rise=warmup_endpoints rounded=round_to_float32 rule=discretization
says=scale self_heads=num_self_heads sentinel=sentinel_token share=partial_rotary_factor shared=share_across_layers
shortest_step=dt_min side=group_from sides=bidirectional sign=include_sign size=group_size|subset_size
skip_bad=skip_invalid slots=num_slots smoothing=label_smoothing squash=squash_factor
start=initial_lr_ratio|decoder_start_token state=state_size|initial_state steepness=slope_scale step_spread=dt_ratio
stride=eval_stride table=max_position_embeddings target=target_accuracy tested=test_fraction texts=symbols
tied=tie_word_embeddings times=expansion|num_loops token=number_token tokens=max_new_tokens trained_on=training_task
trunk=backbone unit_gaps=unit_spacing until=decay_end vectors=embedding watch=monitor width=hidden_size
window=shuffle_window within=shift_within zero=include_zero
"""

NEW_NAMES = {old: new.split("|") for old, _, new in (pair.partition("=") for pair in _RENAMED.split())}
"""Names of classes and settings in 0.1, each with the names that it has now, in one class or another."""
