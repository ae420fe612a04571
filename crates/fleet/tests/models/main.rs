//! Tests of every model of the zoo: the executor with each of its rewrites against the interpreter,
//! one thread against several, evaluation, fetches by name, memory.

mod branches;
mod check;
mod mixed_precision;
mod zoo;

macro_rules! check_models {
    ($($model:ident),* $(,)?) => {$(
        mod $model {
            use crate::{check, zoo};

            #[test]
            fn trains_as_the_interpreter_does() {
                check::training(&zoo::$model());
            }

            #[test]
            fn does_not_depend_on_threads() {
                check::threads(&zoo::$model());
            }

            #[test]
            fn is_evaluated_without_a_trace() {
                check::evaluation(&zoo::$model());
            }

            #[test]
            fn shows_any_variable_by_name() {
                check::fetches(&zoo::$model());
            }

            #[test]
            fn shares_memory() {
                check::memory(&zoo::$model());
            }
        }
    )*};
}

check_models!(
    lenet,
    resnet18,
    resnet50,
    vgg,
    bert,
    bert_masked,
    gpt,
    wide_deep,
    wide_deep_adagrad,
    deepfm,
    word2vec,
    depthwise,
    forked
);
