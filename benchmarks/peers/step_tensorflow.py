"""TensorFlow's arm of benchmarks/step.py: ResNet-50 v1.5 in Keras, a training step in a tf.function, with oneDNN.

Faster than the usual way: Keras 3 computes batch normalisation from single operators and SGD in several passes; here
both are TensorFlow's fused kernels.
"""

import itertools
import math

import tensorflow as tf
from steps import MOMENTUM, RATE, SMOOTHING, WEIGHT_DECAY, count_flops, make_batches, read_job, serve

keras = tf.keras
STAGES = ((3, 64), (4, 128), (6, 256), (3, 512))  # units, width


def main() -> None:
    job = read_job()
    tf.config.threading.set_intra_op_parallelism_threads(job["threads"])
    tf.config.threading.set_inter_op_parallelism_threads(job["threads"])  # 1 is 10 % slower on two cores
    if job["precision"] == "bf16":
        keras.mixed_precision.set_global_policy("mixed_bfloat16")
    network = build_network(job["size"], job["classes"])
    weights = [variable.value for variable in network.trainable_variables]
    moments = [tf.Variable(tf.zeros_like(weight)) for weight in weights]
    batches = itertools.cycle([tuple(map(tf.constant, batch)) for batch in make_batches(job)])

    @tf.function(jit_compile=job["variant"] == "XLA")
    def train(images, labels) -> tf.Tensor:
        targets = tf.one_hot(labels, job["classes"]) * (1 - SMOOTHING) + SMOOTHING / job["classes"]
        with tf.GradientTape() as tape:
            logits = network(images, training=True)
            loss = tf.reduce_mean(tf.nn.softmax_cross_entropy_with_logits(targets, logits))
        gradients = tape.gradient(loss, weights)
        for weight, moment, gradient in zip(weights, moments, gradients, strict=True):
            tf.raw_ops.ResourceApplyKerasMomentum(
                var=weight.handle,
                accum=moment.handle,
                lr=RATE,
                grad=gradient + WEIGHT_DECAY * weight,
                momentum=MOMENTUM,
            )
        return loss

    # Reading the loss waits for the whole function: it returns after all its updates.
    serve(
        f"TensorFlow {tf.__version__}",
        count_flops(list_layers(network)),
        lambda: float(train(*next(batches)).numpy()),
    )


class FusedBatchNorm(keras.layers.BatchNormalization):
    """Batch normalisation of a training step in one kernel."""

    def call(self, images, training=None, mask=None) -> tf.Tensor:  # noqa: ARG002
        gamma, beta = self.gamma.value, self.beta.value
        normalised, *batch = tf.compat.v1.nn.fused_batch_norm(images, gamma, beta, epsilon=self.epsilon)
        for running, now in zip((self.moving_mean, self.moving_variance), batch, strict=True):
            running.value.assign_sub((running.value - now) * (1 - self.momentum))
        return normalised


def build_network(size, classes) -> keras.Model:
    """Build ResNet-50 v1.5: strides on the 3x3 convolutions, no biases before batch normalisation."""
    images = keras.Input((size, size, 3))
    x = convolve(images, 64, 7, 2)
    x = keras.layers.MaxPooling2D(3, 2, padding="same")(x)
    for stage, (units, width) in enumerate(STAGES):
        for unit in range(units):
            stride = 2 if stage and not unit else 1
            shortcut = x if unit else convolve(x, 4 * width, 1, stride, relu=False)
            x = convolve(convolve(x, width, 1), width, 3, stride)
            x = keras.layers.ReLU()(convolve(x, 4 * width, 1, relu=False) + shortcut)
    x = keras.layers.GlobalAveragePooling2D()(x)
    logits = keras.layers.Dense(classes)(x)
    return keras.Model(images, keras.layers.Activation("linear", dtype="float32")(logits))


def convolve(x, channels, kernel, stride=1, *, relu=True) -> tf.Tensor:
    initial = keras.initializers.VarianceScaling(2.0, "fan_out")
    layer = keras.layers.Conv2D(channels, kernel, stride, "same", use_bias=False, kernel_initializer=initial)
    x = FusedBatchNorm(momentum=0.9, epsilon=1e-5)(layer(x))
    return keras.layers.ReLU()(x) if relu else x


def list_layers(network) -> list:
    """Return (number of weights, number of output positions) of each convolution and dense layer."""
    kinds = (keras.layers.Conv2D, keras.layers.Dense)
    layers = [layer for layer in network.layers if isinstance(layer, kinds)]
    return [(math.prod(layer.kernel.shape), math.prod(layer.output.shape[1:-1])) for layer in layers]


main()
