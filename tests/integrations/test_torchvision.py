"""torchvision: models, transforms, losses and boxes give CPU's numbers. The worker does not have torchvision's own C++
ops, so they are refused by name."""

import copy

import pytest
import torch
import torchvision
from torchvision import models, ops
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional

# Models without their pretrained weights. Images are as small as each model allows.
MODELS = {
    "resnet18": 64,
    "mobilenet_v3_small": 64,
    "shufflenet_v2_x0_5": 64,
    "efficientnet_b0": 64,
    "mnasnet0_5": 32,
    "squeezenet1_1": 64,
    "densenet121": 64,
    "googlenet": 64,
    "convnext_tiny": 32,
    "regnet_y_400mf": 32,
    "vgg11_bn": 32,
    "vit_b_32": 224,
    "swin_t": 64,
}


def close(actual, expected, tolerance):
    assert actual.device.type == "remote"
    torch.testing.assert_close(
        actual.cpu().double(), expected.double(), rtol=tolerance, atol=tolerance * expected.double().abs().max().item()
    )


def step(model, images):
    """The output, the gradient of the first weight, and this weight after a training step."""
    model.train()
    result = model(images)
    output = result if isinstance(result, torch.Tensor) else result[0]
    output.square().mean().backward()
    torch.optim.SGD(model.parameters(), lr=1e-3).step()
    return output.detach(), next(model.parameters()).grad, next(model.parameters()).detach()


@pytest.mark.parametrize("name", MODELS)
def test_a_training_step_of_a_model(remote, name):
    options = {"init_weights": True} if name == "googlenet" else {}
    if name == "vit_b_32":
        options["image_size"] = MODELS[name]
    model = models.get_model(name, weights=None, num_classes=10, **options).double()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        if isinstance(module, ops.StochasticDepth):
            module.p = 0.0
    images = torch.randn(2, 3, MODELS[name], MODELS[name], dtype=torch.float64)
    there = copy.deepcopy(model).to(remote)
    for actual, number in zip(step(there, images.to(remote)), step(model, images), strict=True):
        close(actual, number, 1e-6)


@pytest.mark.parametrize("name", ["fcn_resnet50", "lraspp_mobilenet_v3_large"])
def test_segmentation(remote, name):
    model = models.get_model(name, weights=None, weights_backbone=None, num_classes=5).double().eval()
    images = torch.randn(1, 3, 64, 64, dtype=torch.float64)
    with torch.no_grad():
        expected = model(images)["out"]
        close(model.to(remote)(images.to(remote))["out"], expected, 1e-6)


def test_video(remote):
    model = models.video.r3d_18(weights=None, num_classes=4).double().eval()
    clip = torch.randn(1, 3, 4, 32, 32, dtype=torch.float64)
    with torch.no_grad():
        expected = model(clip)
        close(model.to(remote)(clip.to(remote)), expected, 1e-6)


TRANSFORMS = {
    "resize": lambda x: functional.resize(x, [20, 28], antialias=True),
    "resize bicubic": lambda x: functional.resize(x, [20, 28], v2.InterpolationMode.BICUBIC, antialias=True),
    "resize nearest": lambda x: functional.resize(x, [20, 28], v2.InterpolationMode.NEAREST),
    "center crop": lambda x: functional.center_crop(x, [20, 20]),
    "resized crop": lambda x: functional.resized_crop(x, 3, 4, 20, 16, [24, 24], antialias=True),
    "flips": lambda x: functional.vertical_flip(functional.horizontal_flip(x)),
    "pad": lambda x: functional.pad(x, [1, 2, 3, 4], padding_mode="reflect"),
    "rotate": lambda x: functional.rotate(x, 30.0, v2.InterpolationMode.BILINEAR, fill=0.5),
    "affine": lambda x: functional.affine(x, 10.0, [2, 3], 1.1, [5.0, 0.0], v2.InterpolationMode.BILINEAR),
    "perspective": lambda x: functional.perspective(
        x, [[0, 0], [31, 0], [31, 31], [0, 31]], [[2, 1], [29, 3], [30, 28], [1, 30]], v2.InterpolationMode.BILINEAR
    ),
    "gaussian blur": lambda x: functional.gaussian_blur(x, [5, 5], [1.2, 0.8]),
    "brightness": lambda x: functional.adjust_brightness(x, 1.3),
    "contrast": lambda x: functional.adjust_contrast(x, 0.7),
    "saturation": lambda x: functional.adjust_saturation(x, 1.6),
    "hue": lambda x: functional.adjust_hue(x, 0.1),
    "sharpness": lambda x: functional.adjust_sharpness(x, 1.7),
    "autocontrast": functional.autocontrast,
    "solarize": lambda x: functional.solarize(x, 0.5 if x.is_floating_point() else 128),
    "invert": functional.invert,
    "grayscale": lambda x: functional.rgb_to_grayscale(x, 3),
}


# On devices other than CPU, torchvision resizes integers as floats and then rounds them.
RESIZED_AS_FLOATS = ("resize", "resize bicubic", "resized crop")


@pytest.mark.parametrize("dtype", [torch.float32, torch.uint8], ids=str)
@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms(remote, name, dtype):
    images = torch.rand(2, 3, 32, 32)
    images = (images * 255).to(dtype) if dtype == torch.uint8 else images
    actual = TRANSFORMS[name](images.to(remote))
    if dtype == torch.uint8 and name in RESIZED_AS_FLOATS:
        expected = TRANSFORMS[name](images.float()).round().clamp(0, 255).to(dtype)
    else:
        expected = TRANSFORMS[name](images)
    assert actual.dtype == expected.dtype
    if dtype == torch.uint8:  # numbers that CPU rounds to one side may be rounded to the other
        assert (actual.cpu().int() - expected.int()).abs().max() <= 1
        assert (actual.cpu() != expected).float().mean() < 0.01
    else:
        close(actual, expected, 1e-4)


@pytest.mark.parametrize("name", ["equalize", "posterize"])
def test_transforms_of_integers(remote, name):
    images = (torch.rand(2, 3, 32, 32) * 255).to(torch.uint8)
    arguments = (3,) if name == "posterize" else ()
    expected = getattr(functional, name)(images, *arguments)
    assert torch.equal(getattr(functional, name)(images.to(remote), *arguments).cpu(), expected)


def test_a_random_pipeline(remote):
    """Its random numbers are the device's; sizes, dtypes and the range of values are those asked for."""
    pipeline = v2.Compose([
        v2.RandomResizedCrop(24, antialias=True),
        v2.RandomHorizontalFlip(),
        v2.ColorJitter(0.2, 0.2, 0.2, 0.1),
        v2.RandomErasing(1.0),
        v2.ToDtype(torch.float32, scale=True),
        v2.Normalize([0.5] * 3, [0.5] * 3),
    ])  # fmt: skip
    result = pipeline((torch.rand(4, 3, 32, 32) * 255).to(torch.uint8).to(remote))
    assert result.device.type == "remote" and result.shape == (4, 3, 24, 24) and result.dtype == torch.float32
    assert -1.001 <= result.min().item() < result.max().item() <= 1.001
    mixed, labels = v2.MixUp(num_classes=5)(result, torch.tensor([0, 1, 2, 3], device=remote))
    assert mixed.shape == result.shape and labels.sum().item() == pytest.approx(4, abs=1e-4)


def boxes_for_tests(count=12):
    generator = torch.Generator().manual_seed(0)
    corners = torch.rand(count, 2, generator=generator) * 20
    return torch.cat([corners, corners + 1 + torch.rand(count, 2, generator=generator) * 12], 1)


BOXES = {
    "area": lambda a, b: ops.box_area(a),
    "iou": ops.box_iou,
    "generalized_iou": ops.generalized_box_iou,
    "distance_iou": ops.distance_box_iou,
    "complete_iou": ops.complete_box_iou,
    "convert": lambda a, b: ops.box_convert(a, "xyxy", "cxcywh"),
    "clip": lambda a, b: ops.clip_boxes_to_image(a, (16, 24)),
    "small": lambda a, b: ops.remove_small_boxes(a, 4.0),
    "giou_loss": lambda a, b: ops.generalized_box_iou_loss(a, b, reduction="mean"),
    "ciou_loss": lambda a, b: ops.complete_box_iou_loss(a, b, reduction="sum"),
    "focal_loss": lambda a, b: ops.sigmoid_focal_loss(a / 32, (b > 10).float(), reduction="mean"),
}


@pytest.mark.parametrize("name", BOXES)
def test_boxes(remote, name):
    a, b = boxes_for_tests(), boxes_for_tests().flip(0)
    expected = BOXES[name](a, b)
    actual = BOXES[name](a.to(remote), b.to(remote))
    if expected.dtype == torch.int64:
        assert torch.equal(actual.cpu(), expected)
    else:
        close(actual, expected, 1e-5)


def test_masks_and_keypoints(remote):
    masks = torch.zeros(2, 8, 8, dtype=torch.bool)
    masks[0, 2:5, 1:4] = masks[1, 0, 7] = True
    assert torch.equal(ops.masks_to_boxes(masks.to(remote)).cpu(), ops.masks_to_boxes(masks))
    boxes = torchvision.tv_tensors.BoundingBoxes(boxes_for_tests(), format="XYXY", canvas_size=(32, 32))
    flipped = v2.RandomHorizontalFlip(1.0)(torchvision.tv_tensors.wrap(boxes.to(remote), like=boxes))
    assert flipped.device.type == "remote"
    expected = v2.RandomHorizontalFlip(1.0)(boxes)
    assert torch.equal(flipped.cpu().as_subclass(torch.Tensor), expected.as_subclass(torch.Tensor))


def own_ops(device):
    """torchvision's own C++ ops, by name, as functions without arguments."""
    boxes = boxes_for_tests().to(device)
    scores = torch.linspace(0, 1, len(boxes)).to(device)
    features = torch.randn(1, 8, 16, 16, generator=torch.Generator().manual_seed(0)).to(device)
    rois = torch.cat([torch.zeros(len(boxes), 1, device=device), boxes / 2], 1)
    weight = torch.ones(4, 8, 3, 3).to(device)
    return {
        "nms": lambda: ops.nms(boxes, scores, 0.3),
        "roi_align": lambda: ops.roi_align(features, rois, 4),
        "roi_pool": lambda: ops.roi_pool(features, rois, 4),
        "ps_roi_align": lambda: ops.ps_roi_align(features, rois, 2),
        "deform_conv2d": lambda: ops.deform_conv2d(features, torch.zeros(1, 18, 14, 14).to(device), weight),
    }


@pytest.mark.parametrize("name", own_ops("cpu"))
def test_own_ops_are_refused_by_name(remote, monkeypatch, name):
    with pytest.raises(
        NotImplementedError, match=rf"'torchvision::{name}' is registered in this process.*TORCH_REMOTE_FALLBACK=allow"
    ):
        own_ops(remote)[name]()
    monkeypatch.setenv("TORCH_REMOTE_FALLBACK", "allow")
    actual, expected = own_ops(remote)[name](), own_ops("cpu")[name]()
    if expected.dtype == torch.int64:
        assert actual.device.type == "remote" and torch.equal(actual.cpu(), expected)
    else:
        close(actual, expected, 1e-5)


def test_detection_with_the_fallback(remote, monkeypatch):
    model = models.detection.ssdlite320_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=4).eval()
    image = torch.rand(3, 96, 96)
    with torch.no_grad():
        expected = model([image])[0]
        model.to(remote)
        with pytest.raises(NotImplementedError, match="torchvision::nms"):
            model([image.to(remote)])
        monkeypatch.setenv("TORCH_REMOTE_FALLBACK", "allow")
        actual = model([image.to(remote)])[0]
    assert len(actual["scores"]) == len(expected["scores"])
    close(actual["scores"], expected["scores"], 1e-3)
