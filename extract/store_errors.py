"""What the errors of gs:// and s3:// stores mean, each in one line.

obstore raises one kind of error for many causes. What matters here is whether
another try may help: a wrong password that is tried for minutes looks like a
slow network.
"""

import html
import re

from oneshot_dp.configs.errors import InputError, RunError, escaped, one_line

_MAX_REASON_CHARACTERS = 300
PERMISSIONS = {
  "read": {"s3": "s3:GetObject", "gs": "storage.objects.get"},
  "list": {"s3": "s3:ListBucket", "gs": "storage.objects.list"},
  "write": {"s3": "s3:PutObject", "gs": "storage.objects.create"},
  "remove": {"s3": "s3:DeleteObject", "gs": "storage.objects.delete"},
}
"""All that is ever asked of a store, and what must be granted for it."""
# What a store says of a request that no other try makes better, by the codes of
# S3's and GCS's XML; the text follows the URL of the bucket.
_CREDENTIAL_FAULTS = {
  "SignatureDoesNotMatch": (
    "the secret key is wrong; correct AWS_SECRET_ACCESS_KEY, or log in again"
  ),
  "InvalidAccessKeyId": (
    "the store does not know this access key; correct AWS_ACCESS_KEY_ID, or log"
    " in again"
  ),
  "ExpiredToken": "the session token has expired; log in again",
  "TokenRefreshRequired": "the session token has expired; log in again",
  "InvalidToken": "the session token is not valid; log in again",
  "PermanentRedirect": "it is in another region; set AWS_REGION to its own",
  "AuthorizationHeaderMalformed": (
    "it is in another region; set AWS_REGION to its own"
  ),
  "RequestTimeTooSkewed": "this machine's clock is wrong; set it",
}
_CODE = re.compile(r"<Code>([\w.]+)</Code>")
_DENIED_CODES = ("", "AccessDenied", "Forbidden")
"""Codes of a status 403 that mean that a permission is missing, or none."""
_REFUSALS = re.compile(
  r"KMS\..*|InvalidRequest|InvalidArgument|InvalidStorageClass"
  r"|InvalidBucketName|EntityTooLarge|MethodNotAllowed|UserProjectMissing"
)
"""Other codes of what is refused however often it is asked for: a key that is
disabled, a bucket that wants encryption or a payer to be named."""


class UnreachableError(RunError):
  """No connection to the store could be made."""


def no_bucket_error(url: str) -> InputError:
  """The error of a bucket that does not exist; `url` is of anything in it."""
  return InputError(f"{_bucket_url(url)}: there is no such bucket.")


def store_error(
  url: str, place: str, action: str, error: Exception
) -> Exception:
  """Translates an error of obstore into one line.

  Args:
    url: the URL of the folder.
    place: what was asked for, for the message.
    action: a key of `PERMISSIONS`.
    error: what obstore raised.

  Returns:
    FileExistsError or FileNotFoundError; InputError for what no other try makes
    better; RunError for what may go well later.
  """
  kind = type(error).__name__
  reason = str(error).split("\n")[0]  # what follows is long
  # An endpoint may have a password in it.
  reason = re.sub(r"//[^/@\s]*@", "//…@", reason)
  bucket = _bucket_url(url)
  code = _CODE.search(str(error))
  # From what needs no try again to what may need one: a wrong password that is
  # tried for minutes looks like a slow network.
  if kind in ("AlreadyExistsError", "PreconditionError"):
    return FileExistsError(place)
  # Where virtual machines have their credentials; it is asked last.
  if "169.254.169.254" in reason or "metadata.google" in reason:
    return InputError(f"{bucket}: no credentials; log in to the store.")
  if code is not None and code[1] in _CREDENTIAL_FAULTS:
    return InputError(f"{bucket}: {_CREDENTIAL_FAULTS[code[1]]}.")
  if "incorrectly configured region" in reason:
    fault = _CREDENTIAL_FAULTS["PermanentRedirect"]
    return InputError(f"{bucket}: {fault}.")
  is_file = action in ("read", "remove") and "NoSuchBucket" not in str(error)
  if kind == "NotFoundError" and is_file:
    return FileNotFoundError(place)
  if kind == "NotFoundError" or "404 Not Found" in reason:
    return no_bucket_error(url)
  refusal = _refusal(url, place, action, error)
  if refusal is not None:
    return refusal
  if re.search("Unauthen|401 Unauth", f"{kind} {reason}"):
    return InputError(
      f"{bucket}: these credentials are not valid, or have expired; log in"
      " again."
    )
  if "ConnectError(" in str(error):
    return UnreachableError(
      f"{bucket}: the store cannot be reached ({_connect_fault(error)}); check"
      " the network, and the endpoint if one is set."
    )
  reason = escaped(reason)[:_MAX_REASON_CHARACTERS]
  return RunError(f"{place}: {reason}; run the same command again.")


def _refusal(
  url: str, place: str, action: str, error: Exception
) -> InputError | None:
  """The error of a request that the store understands and does not allow."""
  code = ""
  match = _CODE.search(str(error))
  if match is not None:
    code = match[1]
  kind = type(error).__name__
  reason = str(error).split("\n")[0]
  is_forbidden = re.search("Denied|403 Forb", f"{kind} {reason}") is not None
  if is_forbidden and code in _DENIED_CODES:
    permission = PERMISSIONS[action][url[:2]]
    return InputError(
      f"{place}: these credentials lack the permission {permission}; grant it"
      f"{_store_words(error)}."
    )
  if is_forbidden or _REFUSALS.fullmatch(code):
    return InputError(
      f"{place}: the store refuses to {action} it: {code}{_store_words(error)}."
    )
  return None


def _store_words(error: Exception) -> str:
  """What a store says of the reason, in parentheses, if that says anything.

  Permissions may be granted and a policy of the bucket forbid the request all
  the same, as one without encryption.
  """
  # GCS has it in the details, S3 in the message.
  for element in ("Details", "Message"):
    words = re.search(f"<{element}>([^<]+)</{element}>", str(error))
    if words and not re.fullmatch(r"access denied\.?", words[1].lower()):
      reason = one_line(ValueError(html.unescape(words[1])))
      return f" (the store says: {reason})"
  return ""


def _connect_fault(error: Exception) -> str:
  """Why there is no connection, as the operating system says it."""
  message = re.search(r'(?:message|error): "([^"]+)"', str(error))
  return escaped(message[1]) if message else "no connection"


def _bucket_url(url: str) -> str:
  return escaped("/".join(url.split("/")[:3]))
